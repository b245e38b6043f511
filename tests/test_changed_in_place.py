"""Law: who writes into the files of a model that was loaded, such as by cp of another one over it,
changes no text and no figure, and ends no process; and weights are said to be those that they are,
though a run exchanges its export meanwhile."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import eval_models  # noqa: E402
from small import case_of  # noqa: E402
from test_generate_command import save_tokenizer  # noqa: E402

import armd  # noqa: E402
from armd import cli  # noqa: E402
from armd.commands.generate_options import Writing, opened  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.eval.judge import load_judge  # noqa: E402
from armd.eval.load_model import fingerprint, load  # noqa: E402
from armd.pretrained import model_digest  # noqa: E402
from armd.runtime import atomic_folders  # noqa: E402
from armd.runtime.atomic_folders import put_folder  # noqa: E402
from armd.runtime.seeds import seeded  # noqa: E402

LOADED = "armd.eval.load_model"


def written(folder: Path, weights: str) -> Any:
    return opened(Writing(str(folder), weights=weights))[0]


def loaded_text(folder: Path, weights: str) -> Any:
    return armd.load(folder, weights=weights).model


def scored(folder: Path, precision: str) -> Any:
    return load(str(folder), precision=precision).model


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux shows what is mapped")
@pytest.mark.parametrize(
    ("opening", "how"),
    [
        *((written, "fp32"), (written, "plain"), (written, "q8"), (loaded_text, "fp32")),
        *((loaded_text, "plain"), (scored, "float32"), (scored, "q8")),
    ],
)
def test_nothing_stays_in_the_files(saved: Path, tmp_path: Path, opening: Any, how: str) -> None:
    copy = shutil.copytree(saved, tmp_path / "model")
    model = opening(copy, how)
    drawn = armd.generate(model, length=4, generator=seeded(0))
    for file in copy.rglob("*.safetensors"):
        file.write_bytes(b"")  # the same file, cut
    assert str(copy) not in Path("/proc/self/maps").read_text()
    assert torch.equal(armd.generate(model, length=4, generator=seeded(0)), drawn)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux shows what is mapped")
def test_nothing_of_a_foreign_model_or_judge_stays_in_its_files(tmp_path: Path) -> None:
    """A figure would be of two models, or the process be ended, where one is copied over it."""
    folder = eval_models.saved(eval_models.tiny_gpt2(), tmp_path / "model")
    models = (load(folder).model, load_judge(folder).model)
    tokens = torch.arange(8)[None]
    before = [model(tokens).logits for model in models]
    for file in Path(folder).rglob("*.safetensors"):
        file.write_bytes(b"")
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert all(torch.equal(m(tokens).logits, b) for m, b in zip(models, before, strict=True))


def exchanging(patch: pytest.MonkeyPatch, where: str, run: Path, other: Path) -> None:
    """Another export comes, as from a run that trains, just before that function is called."""
    module, name = where.rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)

    def after(folder: Any) -> Any:
        if other.exists():
            put_folder(other, run / "export")
        return function(folder)

    patch.setattr(where, after)


@pytest.mark.parametrize("where", ["armd.pretrained.model_digest", LOADED + ".fingerprint"])
def test_weights_are_not_called_those_of_another_export(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(saved, run / "export")
    model = armd.ArmdLM.from_pretrained(saved)
    model.bos.data += 1
    shutil.copytree(saved, other)
    model.save_pretrained(other)
    with monkeypatch.context() as patch:
        exchanging(patch, where, run, other)
        if where.startswith(LOADED):
            loaded = load(str(run))
            found, named = loaded.model, loaded.fingerprint
        else:
            found, _, named = opened(Writing(str(run)))
    assert not other.exists() and torch.equal(found.bos, model.bos)
    now = fingerprint(run / "export") if where.startswith(LOADED) else model_digest(run)
    assert named == now


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "vocab.txt", "tokenizer.model"])
def test_every_file_of_a_tokenizer_is_part_of_the_model(
    saved: Path, tmp_path: Path, name: str
) -> None:
    copy = shutil.copytree(saved, tmp_path / "model")
    (copy / name).write_text("one")
    before = model_digest(copy)
    (copy / name).write_text("two")
    assert model_digest(copy) != before


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_samples_of_another_config_or_tokenizer_are_not_resumed(
    saved: Path, tmp_path: Path, name: str
) -> None:
    copy, out = shutil.copytree(saved, tmp_path / "model"), tmp_path / "out.jsonl"
    words = ["generate", str(copy), "--length", "8", "--out", str(out), "--count"]
    cli.run([*words, "1"])
    file = copy / name
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_theta": 9.0}))
    (copy / "sha256.json").unlink(missing_ok=True)
    with pytest.raises(ArmdError, match="config or tokenizer"):
        cli.run([*words, "2", "--resume"])


@pytest.mark.parametrize("how", ["replaced", "written into", "removed"])
@pytest.mark.parametrize("verb", ["convert", "convert --to llama", "quantize"])
def test_no_model_is_made_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, how: str
) -> None:
    """Its files may come to hold another one while they are read."""
    model, out = tmp_path / "model", tmp_path / "out"
    case = case_of("random", 4, 1, vocab_size=257, query="neighbor")
    case.model.save_pretrained(tmp_path / "ours")
    save_tokenizer(tmp_path / "ours")
    cli.run(["convert", str(tmp_path / "ours"), str(tmp_path / "llama"), "--to", "llama"])
    shutil.copytree(tmp_path / ("llama" if verb == "convert" else "ours"), model)
    file, write = model / "model.safetensors", atomic_folders.empty_folder

    def changing(path: Path) -> Path:
        content = file.read_bytes()
        if how == "replaced":
            (tmp_path / "other").write_bytes(content)
            (tmp_path / "other").replace(file)
        elif how == "written into":
            file.write_bytes(content)
        else:
            shutil.move(model, tmp_path / "elsewhere")
            shutil.copytree(tmp_path / "elsewhere", model)
        return write(path)

    monkeypatch.setattr(atomic_folders, "empty_folder", changing)
    words = {"quantize": ["--windows", "0"], "convert": []}.get(verb, verb.split()[1:])
    with pytest.raises(ArmdError, match="was replaced while it was read"):
        cli.run([verb.split()[0], str(model), str(out), *words])
    assert not out.exists()
