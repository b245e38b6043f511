"""Laws: an adaptation that is stopped and goes on ends with the bytes of one that was not."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from convert_help import WORDS  # noqa: E402
from test_adapt import base, job, run, samples  # noqa: E402, F401

from armd.runtime import atomic_folders  # noqa: E402
from armd.train.adapt import AdaptTrainer, adapt  # noqa: E402
from armd.train.adapt_command import recipe_of  # noqa: E402
from armd.train.recipe import Recipe  # noqa: E402
from armd.train.trainer import ROUND  # noqa: E402


def resumed(recipe: Recipe, stopped: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that dies before a step, and goes on."""
    step = AdaptTrainer.train_step

    def dies(self: Any, batch: Any, **rest: Any) -> Any:
        if batch.step == stopped:
            raise RuntimeError("killed")
        return step(self, batch, **rest)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(AdaptTrainer, "train_step", dies)
        adapt(recipe)
    return adapt(recipe)


def same_bytes(one: Path, two: Path) -> None:
    for name in ("adapter/adapter_model.safetensors", "export/model.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.parametrize("stopped", [3, 4])
def test_a_stopped_run_ends_as_one_that_was_not(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    run: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped: int,
) -> None:
    recipe = recipe_of(job(base, samples, tmp_path / "run"))
    same_bytes(resumed(recipe, stopped, monkeypatch), run)


def test_who_is_killed_while_the_base_is_removed_gives_the_command_again(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    run: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = recipe_of(job(base, samples, tmp_path / "run"))

    real, out = atomic_folders.remove, Path(recipe.out)

    def dies(path: Path) -> None:
        if (out / "export").exists() and "base" in str(path.relative_to(out)) and path.exists():
            file = path if path.is_file() else path / "config.json"
            file.unlink()
            raise RuntimeError("killed")
        real(path)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(atomic_folders, "remove", dies)
        adapt(recipe)
    same_bytes(adapt(recipe), run)
    assert not list(tmp_path.glob("run/*base*"))


def test_a_stopped_run_whose_windows_come_again_ends_the_same(
    base: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is kept of a window does not depend on the step that kept it: each has another prompt,
    which is read by itself where it is long."""
    file = tmp_path / "own.jsonl"
    rows = torch.randint(1, WORDS, (4, 112), generator=torch.Generator().manual_seed(5)).tolist()
    file.write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    options = {"length": 112, "repeats": 4, "p_prompt": 1.0, "p_infill": 0.0, "ahead": False}
    options |= {"steps": 2 * ROUND + 2, "checkpoint_every": ROUND + 2, "validate_every": 0}
    whole = adapt(recipe_of(job(base, file, tmp_path / "whole", **options)))
    recipe = recipe_of(job(base, file, tmp_path / "run", **options))
    same_bytes(resumed(recipe, ROUND + 3, monkeypatch), whole)
