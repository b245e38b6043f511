"""Laws: a run that cannot go on stops with a reason, and what it has written before stays good."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from training_help import final_state, losses, prepare_corpus, tiny, weights  # noqa: E402

import armd  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.train.checkpoint import damage, steps_in  # noqa: E402
from armd.train.loop import train  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def test_a_really_full_disk(data: Path, tmp_path: Path) -> None:
    """The same on a disk of 300 kB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=300k tmpfs {disk} 2>/dev/null"):
        pytest.skip("may not mount a tmpfs here")
    try:
        with pytest.raises(ArmdError, match="free some space"):
            train(tiny(data, disk / "run", keep=9))
        steps = steps_in(disk / "run" / "checkpoints")
        assert steps
        assert damage(disk / "run" / "checkpoints" / f"step-{steps[-1]:08d}") is None
    finally:
        os.system(f"umount {disk}")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_anything_is_overwritten(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    out, forward, calls = tmp_path / "run", armd.ArmdLM.forward, [0]

    def broken(self: Any, *args: Any, **options: Any) -> Any:
        result = forward(self, *args, **options)
        calls[0] += self.training
        if calls[0] == 9:  # the first half of the fifth step
            result.loss = result.loss * value
        return result

    monkeypatch.setattr(armd.ArmdLM, "forward", broken)
    with pytest.raises(ArmdError, match=r"step 4 on rank 0 .*armd inspect .* --step 4"):
        train(tiny(data, out))
    assert steps_in(out / "checkpoints") == [3]
    assert [row[0] for row in losses(out)] == [1, 2, 3, 4]


def test_a_folder_that_is_no_run_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ArmdError, match="is no run"):
        train(tiny(data, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_averaged_weights_survive_a_kill(data: Path, tmp_path: Path) -> None:
    one, two = (tiny(data, tmp_path / name, ema=0.9) for name in ("one", "two"))
    train(one)
    train(replace(two, out=str(tmp_path / "two")))
    shutil.rmtree(tmp_path / "two" / "checkpoints" / "step-00000016")
    train(two)
    assert final_state(tmp_path / "one") == final_state(tmp_path / "two")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    plain = tmp_path / "plain"
    train(tiny(data, plain))
    assert weights(plain) != weights(tmp_path / "one")
    assert losses(plain) == losses(tmp_path / "one")
