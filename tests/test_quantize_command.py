"""`armd quantize`: the folder holds what packing in memory makes, loads without packing, and what
cannot be used is said in one line."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import armd
from armd import cli
from armd.convert import to_gguf
from armd.errors import ArmdError
from armd.native import library as native
from armd.native.linear import SkinnyLinear
from armd.native.packed import FastLM, pack
from armd.pretrained import load_model
from armd.runtime import atomic_folders
from armd.runtime.atomic_files import SUMS
from armd.runtime.atomic_folders import new_folder
from armd.runtime.lock import locked

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from armd.data.tokenizer import byte_tokenizer

    folder = tmp_path_factory.mktemp("quantize") / "model"
    torch.manual_seed(3)
    sizes = {"vocab_size": 257, "d_model": 48, "n_layers": 2, "n_heads": 3, "max_length": 64}
    config = armd.ArmdConfig(**sizes, query="neighbor", adapter_rank=4)
    byte_tokenizer().save(folder)
    model = armd.ArmdLM(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith(".lora_b"):
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder)
    (folder.parent / "text.txt").write_text("The laws of this folder hold for any text. " * 20)
    return folder


@pytest.fixture(scope="module", params=["q8", "q4"])
def made(source: Path, request: pytest.FixtureRequest) -> Path:
    out = source.parent / request.param
    text = str(source.parent / "text.txt")
    words = ["quantize", str(source), str(out), "--weights", request.param, "--data", text]
    cli.run([*words, "--windows", "3"])
    return out


def texts(model: armd.ArmdLM) -> torch.Tensor:
    g = torch.Generator().manual_seed(5)
    return armd.generate(model, length=30, streams=3, prompt=[[1, 2], [9]], generator=g)


def test_a_packed_file_is_what_is_packed_in_memory(source: Path, made: Path) -> None:
    packed, loaded = pack(load_model(source), made.name), load_model(made)
    assert isinstance(loaded, FastLM) and isinstance(packed, FastLM)
    assert loaded.weights == made.name and not any(p.is_meta for p in loaded.parameters())
    expected, found = packed.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert torch.equal(texts(packed), texts(loaded))
    assert pack(loaded) is loaded
    with pytest.raises(ArmdError, match="already"):
        pack(loaded, "int8")


def test_what_the_rounding_costs_is_in_the_folder(source: Path, made: Path) -> None:
    quality = json.loads((made / "quantized.json").read_text())["quality"]
    plain, packed = load_model(source), pack(load_model(source), made.name)
    ids = list((source.parent / "text.txt").read_bytes())[: 3 * 64]
    text = torch.tensor(ids).view(3, 64)
    for name, order in (
        ("left_to_right", armd.order.left_to_right(64)),
        ("streams_4", armd.order.strided(64, 4)),
    ):
        with torch.no_grad():
            nats = [-armd.log_likelihood(m, text, order).mean() for m in (plain, packed)]
        assert quality[name]["nats"] == pytest.approx(float(nats[0]), abs=1e-4)
        assert quality[name]["quantized_nats"] == pytest.approx(float(nats[1]), abs=1e-4)
        assert 0 <= quality[name]["kl"] < 0.1
    assert quality["tokens"] == 192


def test_kinds_that_gain_most_stay_at_8_bits_where_4_cost_too_much(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """As few as are enough; the file is what is packed in memory, and says so."""
    from armd.commands import quantize as command

    words = ["--weights", "q4", "--data", str(source.parent / "text.txt"), "--windows", "3"]
    cli.run(["quantize", str(source), str(tmp_path / "none"), *words, "--no-mixed"])
    facts = json.loads((tmp_path / "none" / "quantized.json").read_text())
    assert facts["kept"] == []
    monkeypatch.setattr(command, "MOST_LOSS", most := command.cost(facts["quality"]) / 2)
    cli.run(["quantize", str(source), str(tmp_path / "some"), *words])
    facts = json.loads((tmp_path / "some" / "quantized.json").read_text())
    kept = tuple(facts["kept"])
    assert 0 < len(kept) < 6 and command.cost(facts["quality"]) <= most
    assert f"({', '.join(kept)} at 8 bits)" in capsys.readouterr().out
    packed, loaded = pack(load_model(source), "q4", kept=kept), load_model(tmp_path / "some")
    assert isinstance(loaded, FastLM) and loaded.weights == "q4" and loaded.kept == kept
    expected, found = packed.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert torch.equal(texts(packed), texts(loaded))
    assert all(
        part.weights == ("q8" if name.split(".")[-1] in kept else "q4")
        for name, part in loaded.named_modules()
        if isinstance(part, SkinnyLinear) and name.startswith("layers.")
    )


def test_it_writes_and_is_verified(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["verify", str(made)])
    assert "damaged" not in capsys.readouterr().out
    cli.run(["generate", str(made), "--length", "12", "--streams", "2", "--count", "2"])
    assert capsys.readouterr().out


def other_version(folder: Path) -> None:
    facts = json.loads((folder / "quantized.json").read_text())
    (folder / "quantized.json").write_text(json.dumps({**facts, "version": 99}))


def no_table(folder: Path) -> None:
    (folder / "quantized.json").write_text("[1")


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def wider(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "d_ff": config["d_ff"] // 2}))


@pytest.mark.parametrize("harm", [other_version, no_table, cut, wider])
@pytest.mark.parametrize("sums", [True, False])
def test_a_folder_that_cannot_be_used_is_one_line(
    made: Path, tmp_path: Path, harm, sums: bool
) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    harm(folder)
    if not sums:
        (folder / SUMS).unlink()
    with pytest.raises(ArmdError) as error:
        load_model(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_what_cannot_be_quantized(source: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(ArmdError, match="not empty"):
        cli.run(["quantize", str(source), str(made)])
    with pytest.raises(ArmdError, match="float32"):
        cli.run(["quantize", str(made), str(tmp_path / "again")])
    (samples := tmp_path / "samples.txt").write_text("some text")
    for words in (
        ["convert", str(made), str(tmp_path / "back"), "--to", "llama"],
        ["eval", "samples", str(samples), "--judge", str(made)],
    ):
        with pytest.raises(ArmdError, match="is quantized"):
            cli.run(words)
    with pytest.raises(ArmdError, match="fewer than"):
        (tmp_path / "short.txt").write_text("short")
        short = str(tmp_path / "short.txt")
        cli.run(["quantize", str(source), str(tmp_path / "x"), "--data", short])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("verb", ["quantize", "convert"])
def test_what_a_link_leads_to_is_not_copied(source: Path, tmp_path: Path, verb: str) -> None:
    """A folder of somebody else's must not make us give away a file of ours."""
    secret, folder = tmp_path / "secret", tmp_path / "model"
    secret.write_text("mine")
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    (folder / "special_tokens_map.json").symlink_to(secret)
    more = ("--windows", "0") if verb == "quantize" else ("--to", "llama")
    with pytest.raises(ArmdError, match="link"):
        cli.run([verb, str(folder), str(tmp_path / "out"), *more])
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_the_index_of_the_weights_before_is_not_copied(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, folder := tmp_path / "model")
    index = {"metadata": {}, "weight_map": {"embedding.weight": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    cli.run(["quantize", str(folder), str(tmp_path / "out"), "--windows", "0"])
    assert not list((tmp_path / "out").glob("*.index.json"))


WRITERS = [
    ("quantize", "--windows", "0"),
    ("convert", "--to", "llama"),
    ("convert", "--to", "gguf"),
]


@pytest.mark.parametrize("words", WRITERS, ids=" ".join)
def test_two_do_not_write_one_model(source: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Whoever comes second is told who is at work, and what was made meanwhile stays."""
    name = "out.gguf" if "gguf" in words else "out"
    command = [words[0], str(source), str(tmp_path / name), *words[1:]]
    with locked(tmp_path / f".{name}.lock", "x", "x"):
        with pytest.raises(ArmdError, match=rf"is writing .* \(pid {os.getpid()} on .*wait for it"):
            cli.run(command)
        assert [path.name for path in tmp_path.iterdir()] == [f".{name}.lock"]
    cli.run(command)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_where_another_folder_took_its_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other has written of it so far is neither put in place nor removed."""
    place, names = tmp_path / "place", (".out.gguf.lock", ".out.gguf.tmp")

    def exchanged(*_: object) -> None:
        place.rename(tmp_path / "moved")
        place.mkdir()
        for name in names:
            (place / name).write_text("theirs")

    monkeypatch.setattr(to_gguf, "write", exchanged)
    with pytest.raises(ArmdError, match="place was removed or replaced meanwhile"):
        cli.run(["convert", str(source), str(place / "out.gguf"), "--to", "gguf"])
    assert {path.name: path.read_text() for path in place.iterdir()} == dict.fromkeys(
        names, "theirs"
    )


def test_what_appears_while_a_folder_is_filled_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ArmdError, match="not empty"), new_folder(out) as aside:
        (aside / "new").touch()
        out.mkdir()
        (out / "mine").touch()
    assert (out / "mine").exists() and [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("out", [".", "../here", "link"])
def test_the_folder_that_one_stands_in_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    """A rename would leave the shell in a folder that is gone."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "link").symlink_to(tmp_path / "here")
    if out != "link":
        (tmp_path / "here" / "link").unlink()
    with pytest.raises(ArmdError, match=r"working folder|is a link"), new_folder(Path(out)):
        pytest.fail("the work has begun")


def test_a_mount_point_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be renamed to it. One of the same file system has its device, too."""
    out, mounts = tmp_path / "a volume", tmp_path / "mountinfo"
    out.mkdir()
    place = str(out.resolve()).replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 /x {place} rw shared:1 - ext4 /dev/root rw\n")
    monkeypatch.setattr(atomic_folders, "MOUNTS", mounts)
    with pytest.raises(ArmdError, match="mount point; name a new folder in it"), new_folder(out):
        pytest.fail("the work has begun")
    with new_folder(out / "new") as aside:
        (aside / "file").touch()
    assert (out / "new" / "file").exists()


def test_a_place_that_cannot_be_written_is_said_in_one_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArmdError, match="cannot write"):
        cli.run(["quantize", str(source), str(tmp_path / "file" / "out"), "--windows", "0"])


def test_rounding_is_not_measured_on_padding(source: Path, tmp_path: Path) -> None:
    from armd.data.prepare import Preparation, prepare

    (tmp_path / "text.txt").write_text("".join(f"line {n}\n" for n in range(60)))
    options = {"documents": "line", "rows": 32, "workers": 1}
    prepare(Preparation(str(tmp_path / "text.txt"), "byte", tmp_path / "rows", **options))
    words = ["quantize", str(source), str(tmp_path / "out"), "--data", str(tmp_path / "rows")]
    with pytest.raises(ArmdError, match="padding"):
        cli.run(words)
    assert not (tmp_path / "out").exists()
