"""Laws: a run whose folder was removed or moved away ends, and writes nothing into the folder that
took its place; nor does anything else that holds a lock."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

torch = pytest.importorskip("torch")

from training_help import (  # noqa: E402
    final_state,
    heldout,
    kill,
    losses,
    prepare_corpus,
    run,
    start,
    start_group,
    tiny,
    weights,
)

import armd.train.checkpoint  # noqa: E402
import armd.train.export  # noqa: E402
import armd.train.loop  # noqa: E402
import armd.train.sample_texts  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.runtime import atomic_folders, lock  # noqa: E402
from armd.runtime.atomic_folders import new_folder  # noqa: E402
from armd.runtime.lock import locked  # noqa: E402
from armd.train.loop import train  # noqa: E402
from armd.train.saved_checkpoint import steps_in  # noqa: E402
from armd.train.trainer import Trainer  # noqa: E402

LOST = "run was removed or replaced while it was trained"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second run, where nothing was before it."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run(tiny(data, out, seed=2)) == 0
    return out


def removed(out: Path) -> None:
    shutil.rmtree(out)


def moved(out: Path) -> None:
    out.rename(out.with_name("moved"))


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def once(patch: pytest.MonkeyPatch, owner: Any, name: str, then: Callable[[], None]) -> None:
    """Let something happen when a function is called for the first time, after its work."""
    work, called = getattr(owner, name), []

    def with_more(*args: Any, **rest: Any) -> Any:
        found = work(*args, **rest)
        if not called:
            called.append(name)
            then()
        return found

    patch.setattr(owner, name, with_more)


def idle_writer() -> None:
    """Wait for the thread that writes checkpoints, unless this is it: between its look at the
    folder and its write to it is a moment, which is no part of the law (docs/reliability.md)."""
    for thread in threading.enumerate():
        if thread.name == armd.train.checkpoint.WRITER and thread is not threading.current_thread():
            thread.join(PATIENCE)


@pytest.mark.parametrize("away", [removed, moved])
def test_another_run_begins_in_its_place(
    data: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    away: Callable[[Path], None],
) -> None:
    """The first ends, and the second, which trains on, ends as if it were alone."""
    out, second = tmp_path / "run", []

    def exchanged() -> None:
        away(out)
        second.append(start(tiny(data, out, seed=2), slow=0.5))
        while not losses(out):
            time.sleep(0.005)

    once(monkeypatch, Trainer, "train_step", exchanged)
    with pytest.raises(ArmdError, match=LOST):
        train(tiny(data, out))
    assert (out / ".lock").exists() and second[0].is_alive()
    with pytest.raises(ArmdError, match=f"pid {second[0].pid} on"):
        train(tiny(data, out, seed=2))
    second[0].join(PATIENCE)
    assert second[0].exitcode == 0
    assert files(out).keys() == files(whole).keys()
    assert losses(out) == losses(whole) and heldout(out) == heldout(whole)
    assert weights(out) == weights(whole)
    for step in steps_in(whole / "checkpoints"):
        assert final_state(out, step) == final_state(whole, step)


MOMENTS = {
    "step": (Trainer, "train_step"),
    "heldout": (armd.train.loop, "heldout_losses"),
    "sample": (armd.train.sample_texts, "sample_texts"),
    "checkpoint": (armd.train.checkpoint, "write_tensors"),
    "sums": (armd.train.checkpoint, "hash_file"),
    "checkpoint in place": (armd.train.checkpoint.Checkpoints, "_put_in_place"),
    "export": (armd.train.export, "write_tensors"),
    "whole export": (atomic_folders, "sync_tree"),
    "start": (armd.train.loop.Run, "make_trainer"),
    "found": (armd.train.checkpoint.Checkpoints, "newest"),
}


@pytest.mark.parametrize("again", [True, False], ids=["replaced", "gone"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_whenever_it_is_exchanged(
    data: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unchecked: None,
    moment: str,
    again: bool,
) -> None:
    """Nothing is written in the other's folder, or where there is none; what was moved goes on."""
    out = tmp_path / "run"
    theirs = tmp_path / "theirs"
    shutil.copytree(whole, theirs)
    for name in (".lock", ".export.tmp/half", "checkpoints/.step-00000003.tmp/half"):
        (theirs / name).parent.mkdir(exist_ok=True)
        (theirs / name).write_text("theirs")
    before = files(theirs)

    def exchanged() -> None:
        idle_writer()
        moved(out)
        if again:
            theirs.rename(out)

    often = {"sample_every": 8 if moment == "sample" else 0}
    with monkeypatch.context() as patch, pytest.raises(ArmdError, match=LOST):
        once(patch, *MOMENTS[moment], exchanged)
        train(tiny(data, out, **often))
    assert files(out) == before if again else not out.exists()
    shutil.rmtree(out, ignore_errors=True)
    moved_to = tmp_path / "moved"
    train(tiny(data, moved_to, **often))
    assert losses(moved_to)[-1][0] == 16 and not (moved_to / ".lock").exists()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_of_several_processes_none_writes_there(
    data: Path, whole: Path, tmp_path: Path, parallel: str
) -> None:
    """All of them write their part of a checkpoint when the folder goes."""
    out, changes = tmp_path / "run", {"parallel": parallel, "log_every": 3}
    processes = start_group(tiny(data, out, **changes), 2, slow=1.0)
    while not list(out.glob("checkpoints/.step-*/state-00000.safetensors")):
        time.sleep(0.005)
    moved(out)
    shutil.copytree(whole, out)
    (out / ".lock").write_text("theirs")
    before = files(out)
    for process in processes:
        process.join(PATIENCE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        kill(process)
    assert codes[0] == 2 and codes[1]
    assert files(out) == before


def test_a_run_that_ends_leaves_the_lock_of_another(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lock"
    path.parent.mkdir()
    with locked(path, "x", "x") as first:
        assert first.ours()
        removed(path.parent)
        assert not first.ours()
        path.parent.mkdir()
        with locked(path, "x", "x") as second:
            assert second.ours() and not first.ours()
            with pytest.raises(ArmdError, match="lost"):
                first.check("lost")
            second.check("lost")
        path.write_text("theirs")
    assert path.read_text() == "theirs"


def test_where_there_are_no_locks_the_folder_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends there, such as one that was refused, takes the file of the other."""

    def none(*_: Any) -> None:
        raise OSError(lock.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", none)
    path = tmp_path / "run" / ".lock"
    path.parent.mkdir()
    with locked(path, "x", "x") as first:
        with locked(path, "x", "x") as second:
            assert first.ours() and second.ours()
        assert not path.exists() and first.ours()
        moved(path.parent)
        path.parent.mkdir()
        path.write_text("theirs")
        assert not first.ours()
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("fails", [False, True])
def test_a_folder_that_is_filled_where_another_took_its_place(tmp_path: Path, fails: bool) -> None:
    """What the other has written so far is neither put in place nor removed."""
    place = tmp_path / "place"
    raised = RuntimeError if fails else ArmdError
    said = "stopped" if fails else "place was removed or replaced meanwhile"
    with pytest.raises(raised, match=said), contextlib.ExitStack() as stack:
        aside = stack.enter_context(new_folder(place / "out"))
        moved(place)
        aside.mkdir(parents=True)
        (aside / "half").write_text("theirs")
        held = {path.name for path in (tmp_path / "moved").iterdir()} - {aside.name}
        (place / held.pop()).write_text("theirs")
        before = files(place)
        if fails:
            raise RuntimeError("stopped")
    assert files(place) == before and len(before) == 2
