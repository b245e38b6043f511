"""Law: no link in a folder of somebody else's leads our writing or our copies out of it, and no
number in a foreign model is believed before anything is made of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from convert_help import source_model  # noqa: E402

from armd import cli  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.convert.to_gguf import to_gguf  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.runtime import memory  # noqa: E402
from armd.runtime.atomic_files import copy_plain_files, write_text  # noqa: E402
from armd.runtime.processes import ProcessGroup  # noqa: E402
from armd.train.checkpoint import Checkpoints  # noqa: E402


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "llama"
    source_model("llama", folder)
    return folder


def refused(source: Path, tmp_path: Path, change: dict[str, Any], name: str = "config.json") -> str:
    """The line that a changed source is refused with; nothing is left behind."""
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    file = copy / name
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ArmdError) as error:
        convert(str(copy), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]
    return str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": True},
        {"num_attention_heads": 0},
        {"num_key_value_heads": -1},
        {"hidden_size": "wide"},
        {"head_dim": 7},
        {"vocab_size": 10**30},
        {"max_position_embeddings": 10**12},
        {"rms_norm_eps": float("nan")},
        {"rope_parameters": [1]},
        {"rope_parameters": {"rope_theta": "x"}},
        {"model_type": ["llama"]},
        {"layer_types": 5, "sliding_window": 1, "use_sliding_window": True},
    ],
    ids=str,
)
def test_sizes_of_a_foreign_model_are_not_believed(
    source: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    assert len(refused(source, tmp_path, change)) < 600


def test_a_foreign_config_brings_no_kernels(source: Path, tmp_path: Path) -> None:
    change = {"text_config": {"_attn_implementation": "evil/kernels"}}
    assert "code" in refused(source, tmp_path, change)


def test_a_foreign_tokenizer_brings_no_code_and_no_links(source: Path, tmp_path: Path) -> None:
    code = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}
    assert "auto_map" in refused(source, tmp_path, code, "tokenizer_config.json")
    secret = tmp_path / "secret"
    secret.write_text("key")
    for name in ("chat_template.jinja", "merges.txt"):
        copy = tmp_path / name
        shutil.copytree(source, copy)
        (copy / name).symlink_to(secret)
        with pytest.raises(ArmdError, match="link"):
            convert(str(copy), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_copies_give_nothing_away(tmp_path: Path) -> None:
    folder, secret = tmp_path / "tokenizer", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    (secret / "key").write_text("mine")
    (folder / "notes.txt").symlink_to(secret / "key")
    for place in (folder, tmp_path / "linked"):
        if not place.exists():
            place.symlink_to(secret)
        with pytest.raises(ArmdError, match="is a link"):
            copy_plain_files(place, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_file_is_replaced_and_never_written_through_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("years of work")
    for name in ("metrics.jsonl", ".metrics.jsonl.tmp"):
        (tmp_path / name).symlink_to(mine)
    write_text(tmp_path / "metrics.jsonl", "rows")
    assert mine.read_text() == "years of work"
    assert (tmp_path / "metrics.jsonl").read_text() == "rows"
    write_text(Path("/dev/null"), "nothing")
    assert Path("/dev/null").is_char_device()


def test_a_run_removes_nothing_but_its_own(tmp_path: Path) -> None:
    """The folder of checkpoints may be a link to anywhere."""
    home, run = tmp_path / "home", tmp_path / "run"
    (home / ".ssh").mkdir(parents=True)
    (home / ".profile").write_text("mine")
    (home / ".step-00000003.tmp").mkdir()
    run.mkdir()
    (run / "checkpoints").symlink_to(home)
    Checkpoints(run / "checkpoints", keep=2, group=ProcessGroup())
    assert sorted(path.name for path in home.iterdir()) == [".profile", ".ssh"]


def test_gguf_files_with_flipped_bytes(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    convert(str(source), tmp_path / "ours")
    to_gguf(str(tmp_path / "ours"), tmp_path / "whole.gguf", "F16")
    data, file = (tmp_path / "whole.gguf").read_bytes(), tmp_path / "broken.gguf"
    for name in (b"block_count", b"embedding_length", b"head_count", b"context_length"):
        at = data.index(name) + len(name) + 4  # behind the name and its type
        for value in (b"\0\0\0\0", b"\xff\xff\xff\xff"):
            file.write_bytes(data[:at] + value + data[at + 4 :])
            with pytest.raises(ArmdError):
                convert(str(file), tmp_path / "out")
    for size in range(0, 4000, 250):
        file.write_bytes(data[:size])
        with pytest.raises(ArmdError):
            convert(str(file), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tables_without_end_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text("[" * 100_000)
    monkeypatch.setattr("sys.argv", ["armd", "report", str(tmp_path / "prompts.jsonl")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["generate", "serve"])
def test_a_length_that_no_memory_holds_is_refused_before_it_is_taken(
    saved: Path, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of all positions have it, however short the text is."""
    folder = shutil.copytree(saved, tmp_path / "model")
    (folder / "sha256.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_length": 4_000_000}))
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 27)
    more = ["--length", "8"] if verb == "generate" else ["--port", "0"]
    with pytest.raises(ArmdError, match=r"KV cache .* needs .* lower max_length"):
        cli.run([verb, str(folder), "--weights", "plain", *more])
