"""Laws: an adaptation whose folder was moved away ends, and writes nothing into the folder that
took its place; where it was moved, it goes on."""

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from test_adapt import base, job, samples  # noqa: E402, F401
from test_adapt_base import ENDED, MADE, at_step, dies  # noqa: E402
from test_exchanged_runs import LOST, files, moved, once  # noqa: E402

from armd.errors import ArmdError  # noqa: E402
from armd.train import adapt as module  # noqa: E402
from armd.train import adapt_base  # noqa: E402
from armd.train.adapt import AdaptTrainer, adapt  # noqa: E402
from armd.train.adapt_command import recipe_of  # noqa: E402
from armd.train.loop import Run  # noqa: E402

MOMENTS = {
    "base": (adapt_base, "fingerprint"),
    "whole base": (adapt_base, "write_sums"),
    "step": (AdaptTrainer, "train_step"),
    "adapter": (module, "write_adapter"),
    "model": (module, "write_one_by_one"),
    "whole model": (module, "write_sums"),
    "end": (Run, "go"),
}


@pytest.fixture(scope="module")
def whole(base: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A run that nothing happened to."""
    return adapt(recipe_of(job(base, samples, tmp_path_factory.mktemp("whole") / "run")))


@pytest.fixture(scope="module")
def begun(base: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Another run, which writes its adapter and its model."""
    out = tmp_path_factory.mktemp("begun") / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        at_step(patch, 5, dies)
        adapt(recipe_of(job(base, samples, out, learning_rate=2e-2)))
    for name in (".lock", ".base.tmp/half", ".adapter.tmp/half", ".export.tmp/half"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("theirs")
    assert (out / "base").is_dir()
    return out


@pytest.mark.parametrize("again", [True, False], ids=["replaced", "gone"])
@pytest.mark.parametrize(
    "moment, steps", [(name, n) for name in MOMENTS for n in (0, 6) if n or name != "step"]
)
def test_whenever_it_is_exchanged(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    whole: Path,
    begun: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unchecked: None,
    moment: str,
    steps: int,
    again: bool,
) -> None:
    out, to = tmp_path / "run", tmp_path / "moved"

    def exchanged() -> None:
        moved(out)
        if again:
            shutil.copytree(begun, out)

    with monkeypatch.context() as patch, pytest.raises(ArmdError, match=LOST):
        recipe = recipe_of(job(base, samples, out, steps=steps))
        once(patch, *MOMENTS[moment], exchanged)
        adapt(recipe)
    assert files(out) == files(begun) if again else not out.exists()
    adapt(recipe_of(job(base, samples, to, steps=steps)))
    for name in MADE if steps else ():
        assert (to / name).read_bytes() == (whole / name).read_bytes()
    assert {path.name for path in to.iterdir()} <= ENDED
