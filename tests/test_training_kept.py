"""Laws: checkpoints that were asked for stay, and another run can go on from one of them."""

import errno
import io
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from training_help import final_state, prepare_corpus, run, tiny  # noqa: E402

from armd.commands.verify import check_folder, verify  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.model.configuration_armd import ArmdConfig  # noqa: E402
from armd.train import export, saved_checkpoint  # noqa: E402
from armd.train.command import parse  # noqa: E402
from armd.train.export import exported_step  # noqa: E402
from armd.train.loop import train  # noqa: E402
from armd.train.recipe_files import as_json, differences, lengthened  # noqa: E402
from armd.train.run_folder import read_recipe  # noqa: E402
from armd.train.saved_checkpoint import checkpoint_of, damage, steps_in  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def test_steps_that_are_asked_for_are_kept_exported_and_verified(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(data, tmp_path / "run", keep_at=(4, 6), keep=1, validate_every=0)
    assert run(recipe) == 0
    assert steps_in(tmp_path / "run" / "checkpoints") == [4, 6, 16]
    for step in (4, 6):
        assert exported_step(tmp_path / "run" / "exports" / f"step-{step:08d}") == step
    assert not [wrong for _, wrong in check_folder(tmp_path / "run") if wrong]

    def removed(place: Path) -> str | None:
        """As by a run that trains while somebody looks."""
        if place.name == "step-00000004":
            shutil.rmtree(place, ignore_errors=True)
        return damage(place)

    with monkeypatch.context() as patch:
        patch.setattr(saved_checkpoint, "damage", removed)
        found = dict(check_folder(tmp_path / "run"))
    assert not any(found.values()) and "checkpoints/step-00000004" not in found
    weights = tmp_path / "run" / "exports" / "step-00000006" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ArmdError, match="exports/step-00000006"):
        verify(tmp_path / "run")


def test_an_export_that_fails_leaves_nothing_beside_the_one_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tiny(data, tmp_path / "run", steps=2, i_ar=1, i_perm=2, sbp_steps=0))
    before = (run / "export" / "model.safetensors").read_bytes()

    def full(file: Path, *rest: Any) -> None:
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export, "write_tensors", full)
    config = ArmdConfig.from_pretrained(run / "export")
    with pytest.raises(OSError, match="No space"):
        export.export(checkpoint_of(str(run), 2), config, {}, run / "export")
    assert (run / "export" / "model.safetensors").read_bytes() == before
    assert not list(run.glob(".*"))


def test_a_run_that_goes_on_from_anothers_step_is_that_run(data: Path, tmp_path: Path) -> None:
    """The strided phase from a kept checkpoint, optimizer state and all, equals one long run."""
    same: dict[str, Any] = {"schedule": "constant", "validate_every": 0}
    assert run(tiny(data, tmp_path / "base", sbp_steps=0, keep_at=(12,), **same)) == 0
    assert run(tiny(data, tmp_path / "long", **same)) == 0
    base = str(tmp_path / "base")
    assert run(tiny(data, tmp_path / "fork", start=base, start_step=12, **same)) == 0
    assert final_state(tmp_path / "fork") == final_state(tmp_path / "long")
    with pytest.raises(ArmdError, match=r"no checkpoint of step 7 .*--keep-at 7"):
        train(tiny(data, tmp_path / "other", start=base, start_step=7, **same))
    with pytest.raises(ArmdError, match="--start-step 16"):
        tiny(data, tmp_path / "other", start=base, start_step=16).check()


def test_steps_to_keep_are_a_list_of_numbers() -> None:
    given = ["--data", "d", "--out", "o"]
    for words in (["--keep-at", "60,120"], ["--keep-at=60,120"], ["--keep-at", "60", "120"]):
        assert parse(["mini", *words, *given]).report.keep_at == (60, 120)
    with pytest.raises(ArmdError, match="--keep-at 0"):
        parse(["mini", "--keep-at", "0", *given]).check()


def test_of_options_given_twice_the_last_counts(tmp_path: Path) -> None:
    given = ["--data", "d", "--out", "o"]
    twice = parse(["mini", "--model", "mdlm", *given, "--model=armd"])
    assert twice == parse(["mini", *given, "--model", "armd"])
    adapted = tmp_path / "config.json"
    adapted.write_text('{"adapt": {"base_model": "smollm2"}}')
    with pytest.raises(ArmdError, match="use armd adapt smollm2"):
        parse(["mini", *given, "--config", str(adapted)])


def test_a_run_of_an_earlier_version_keeps_its_reading_of_rho(data: Path, tmp_path: Path) -> None:
    recipe = tiny(data, tmp_path)
    text = as_json(recipe).replace('"shuffle": "among",', "").replace('"rho_of": "tokens",', "")
    (tmp_path / "config.json").write_text(text)
    found = read_recipe(tmp_path).curriculum
    assert (found.shuffle, found.rho_of) == ("among", "tokens")


def test_a_run_that_is_lengthened_is_the_longer_run(data: Path, tmp_path: Path) -> None:
    """Where the learning rate is constant after warmup: to the last bit, optimizer and all."""
    same: dict[str, Any] = {"schedule": "constant", "validate_every": 0, "sbp_steps": 0}
    assert run(tiny(data, tmp_path / "short", **same)) == 0
    assert run(tiny(data, tmp_path / "short", **same, steps=15)) == 0
    assert run(tiny(data, tmp_path / "long", **same, steps=15)) == 0
    assert final_state(tmp_path / "short", 15) == final_state(tmp_path / "long", 15)
    assert read_recipe(tmp_path / "short").curriculum.total == 15
    with pytest.raises(ArmdError, match="steps is 15 there and 12 here"):
        train(tiny(data, tmp_path / "short", **same))


@pytest.mark.parametrize(
    ("began", "asked", "step", "good"),
    [
        ({}, {"steps": 20}, 12, True),  # the strided phase has not begun
        ({}, {"steps": 20}, 13, False),
        ({}, {"sbp_steps": 9}, 16, True),
        ({}, {"sbp_steps": 1}, 12, False),
        ({"schedule": "cosine"}, {"steps": 20}, 3, False),
        ({}, {"steps": 20, "learning_rate": 1.0}, 3, False),
    ],
)
def test_a_run_is_lengthened_only_where_it_would_have_gone_the_same_way(
    data: Path, began: dict[str, Any], asked: dict[str, Any], step: int, good: bool
) -> None:
    before = tiny(data, Path("run"), **{"schedule": "constant"} | began)
    now = tiny(data, Path("run"), **{"schedule": "constant"} | began | asked)
    assert (not list(differences(lengthened(before, now, [3, step]), now))) == good


def test_the_live_panel_shows_its_headings() -> None:
    from rich.console import Console

    from armd.train.progress_view import ProgressView, StepReport

    view = ProgressView("mini", start=0, total=10, shown=True)
    view.losses.append(2.0)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view._panel(StepReport(3, 2.0, "rho 4", 1e-3, 0.5, 1000.0)))
    lines = console.export_text().splitlines()
    headings = next(line for line in lines if "perplexity" in line)
    assert all(name in headings for name in ("loss", "order", "tokens/s", "time left"))
    assert "━" not in headings
