"""Laws: an adaptation ends, and goes on, with the model that it began with, though that is a run
whose export is replaced meanwhile; and what it says of another config names no option."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from convert_help import tokenizer_files  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from test_adapt import base, job, samples  # noqa: E402, F401
from test_exchanged_runs import files  # noqa: E402

from armd.commands.verify import check_folder  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.runtime.atomic_files import write_sums  # noqa: E402
from armd.runtime.atomic_folders import put_folder  # noqa: E402
from armd.train import adapt_base, run_folder  # noqa: E402
from armd.train.adapt import AdaptTrainer, adapt  # noqa: E402
from armd.train.adapt_command import recipe_of  # noqa: E402

MADE = ("adapter/adapter_model.safetensors", "export/model.safetensors")
ENDED = {"adapter", "checkpoints", "export", "config.json", "data.json", "metrics.jsonl"}


@pytest.fixture
def trained(base: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A run with an export."""
    shutil.copytree(base, tmp_path / "trained" / "export")
    return tmp_path / "trained"


def train_on(run: Path) -> None:
    """Put another export in place, as training does."""
    aside = run / ".export.tmp"
    shutil.copytree(run / "export", aside)
    weights = load_file(aside / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, aside / "model.safetensors")
    write_sums(aside)
    put_folder(aside, run / "export")


def at_step(patch: pytest.MonkeyPatch, number: int, then: Any) -> None:
    step = AdaptTrainer.train_step

    def with_more(self: Any, batch: Any, **rest: Any) -> Any:
        if batch.step == number:
            then()
        return step(self, batch, **rest)

    patch.setattr(AdaptTrainer, "train_step", with_more)


def dies() -> None:
    raise RuntimeError("killed")


@pytest.mark.parametrize("changes", [{}, {"exact": False}, {"full": True}])
def test_the_base_is_the_one_that_it_began_with(
    trained: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    """Replaced while it learns, and between a kill and the same command given again."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    adapt(recipe_of(job(trained, samples, whole, **changes)))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        at_step(patch, 3, dies)
        adapt(recipe_of(job(trained, samples, out, **changes)))
    assert ("base", None) in list(check_folder(out))
    config = out / "base" / "config.json"
    before = config.read_bytes()
    config.write_bytes(before + b" ")
    assert dict(check_folder(out))["base"]
    config.write_bytes(before)
    train_on(trained)
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: train_on(trained))
        adapt(recipe_of(job(trained, samples, out, **changes)))
    for name in MADE if not changes.get("full") else MADE[1:]:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    for run in (whole, out):
        assert {path.name for path in run.iterdir()} <= ENDED


def test_what_a_user_put_beside_the_base_is_in_the_export(
    trained: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run removes its base when it ends."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        at_step(patch, 3, dies)
        adapt(recipe_of(job(trained, samples, out)))
    (out / "base" / "mine").mkdir()
    for name in ("mine/notes.txt", "notes.txt", "other.gguf"):
        (out / "base" / name).write_text("mine")
    adapt(recipe_of(job(trained, samples, out)))
    for name in ("mine/notes.txt", "notes.txt", "other.gguf"):
        assert (out / "export" / name).read_text() == "mine"
    assert {path.name for path in out.iterdir()} <= ENDED
    assert not list((out / "export").glob("*.before"))


def test_weights_that_are_kept_take_no_room(
    trained: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And where they cannot be linked, as on another disk, they are copied."""
    seen = []

    def looks(out: Path) -> None:
        files = (trained / "export" / "model.safetensors", out / "base" / "model.safetensors")
        assert files[0].read_bytes() == files[1].read_bytes()
        seen.append(files[0].samefile(files[1]))

    for name in ("linked", "copied"):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            if name == "copied":
                patch.setattr(adapt_base.os, "link", lambda *_: (_ for _ in ()).throw(OSError()))
            at_step(patch, 1, lambda out=out: looks(out))
            adapt(recipe_of(job(trained, samples, out, steps=2)))
    assert seen == [True, False]


@pytest.mark.parametrize("changes", [{"steps": 0}, {"steps": 1, "full": True}])
def test_other_forms_of_the_weights_of_a_base_are_not_copied(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "base" / "base.gguf").write_bytes(b"GGUF")
    index = {"metadata": {}, "weight_map": {"embedding.weight": "model.safetensors"}}
    (tmp_path / "base" / "model.safetensors.index.json").write_text(json.dumps(index))
    out, kept = tmp_path / "out", []
    at_step(monkeypatch, 0, lambda: kept.extend(path.name for path in (out / "base").iterdir()))
    adapt(recipe_of(job(tmp_path / "base", samples, out, **changes)))
    made = {path.name for path in (out / "export").iterdir()}
    assert not {"base.gguf", "model.safetensors.index.json"} & made
    assert "base.gguf" not in kept and bool(kept) == bool(changes["steps"])


def test_a_base_that_is_gone_is_said(
    trained: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """In a line, with nothing changed, as every time."""
    out = adapt(recipe_of(job(trained, samples, tmp_path / "out", steps=2)))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    train_on(trained)
    for _ in range(2):
        with pytest.raises(ArmdError, match=r"began with other weights .* choose another folder"):
            adapt(recipe_of(job(trained, samples, out, steps=2)))
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_base_that_is_replaced_at_the_start_is_said_once(
    trained: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The same command, given again, begins with the new one."""
    recipe = recipe_of(job(trained, samples, tmp_path / "out", steps=2))
    train_on(trained)
    with pytest.raises(ArmdError, match="give the same command again"):
        adapt(recipe)
    out = adapt(recipe_of(job(trained, samples, tmp_path / "out", steps=2)))
    ours, theirs = (load_file(f / "export" / "model.safetensors") for f in (out, trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if ours[name].dim() == 2)
    assert {path.name for path in out.iterdir()} <= ENDED


@pytest.mark.parametrize("kind", ["text", "samples"])
@pytest.mark.parametrize("change", ["words", "eos"])
def test_tokens_of_another_tokenizer_are_not_learnt(
    trained: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
    kind: str,
    change: str,
) -> None:
    """Though the model that they were made with had the same name."""
    data, out = samples, tmp_path / "out"
    if kind == "text":
        data = tmp_path / "text.txt"
        data.write_text(
            "\n\n".join(f"the order of the other {n} then there " * 9 for n in range(40))
        )
    recipe_of(job(trained, data, out))
    recipe_of(job(trained, data, out))  # the dataset is there
    before = files(tmp_path / "out-data")
    if change == "words":
        tokenizer_files(trained / "export", "another text, and yet another one, and so on")
    else:
        settings = trained / "export" / "tokenizer_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": "a"}))
    write_sums(trained / "export")
    with pytest.raises(ArmdError, match="out-data"):
        recipe_of(job(trained, data, out))
    assert files(tmp_path / "out-data") == before
    recipe_of(job(trained, data, tmp_path / "else"))


def test_another_config_is_told_without_options(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A verb has options for some of the fields, by other names for some, and not the same ones
    as the next verb."""
    recipe = recipe_of(job(base, samples, tmp_path / "out", steps=0))
    adapt(recipe)
    parts = (recipe.network, recipe.curriculum, recipe.optimizer, recipe.report, recipe.adapt)
    names = [field.name for part in (*parts, recipe) for field in dataclasses.fields(part)]
    for name in names:
        monkeypatch.setattr(run_folder, "differences", lambda *_, name=name: [(name, 1, 2)])
        with pytest.raises(ArmdError) as said:
            adapt(recipe)
        assert not re.search(r"--[a-z]", str(said.value)), said.value
        assert "choose another folder" in str(said.value)
    assert "--" not in Path(run_folder.__file__).read_text()  # the same of what else it says


def test_a_base_that_is_changed_in_place_changes_nothing_that_is_learnt(
    trained: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as by cp of another model over it; with the old one back, the run ends as it would."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    adapt(recipe_of(job(trained, samples, whole)))
    file = trained / "export" / "model.safetensors"
    before = file.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(ArmdError, match="were changed while"):
        at_step(patch, 2, lambda: file.write_bytes(b""))
        adapt(recipe_of(job(trained, samples, out)))
    file.write_bytes(before)
    adapt(recipe_of(job(trained, samples, out)))
    for name in MADE:
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_it_goes_on_wherever_its_base_and_its_text_lie(
    base: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "texts").mkdir()
    words = "".join(f"the order of the other text, {n} times\n\n" for n in range(200))
    (tmp_path / "texts" / "text.txt").write_text(words)
    shutil.copytree(base, tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        at_step(patch, 3, dies)
        adapt(recipe_of(job(Path("one"), Path("texts/text.txt"), tmp_path / "run")))
    (tmp_path / "one").rename(tmp_path / "two")
    monkeypatch.chdir(tmp_path / "texts")
    moved = job(Path("../two"), Path("text.txt"), Path("../run"))
    assert (adapt(recipe_of(moved)) / "export" / "config.json").is_file()


def test_many_processes_are_refused_before_anything_is_prepared(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArmdError, match="without torchrun"):
        recipe_of(job(base, samples, tmp_path / "run"))
    assert not list(tmp_path.iterdir())
