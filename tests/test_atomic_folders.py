"""Laws: a folder that is replaced is the old one or the new one at every moment, and damage is
found."""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from armd.errors import ArmdError
from armd.runtime import atomic_folders
from armd.runtime.atomic_files import (
    SUMS,
    damaged_files,
    write_sums,
)
from armd.runtime.atomic_folders import (
    finish_replacing,
    new_folder,
    put_folder,
    refuse_full,
    replaced_folder,
    unexchanged,
)
from armd.runtime.lock import Check


def filled(folder: Path, content: str) -> Path:
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).write_text(content)
    write_sums(folder)
    return folder


def test_an_export_is_never_absent_while_it_is_replaced(tmp_path: Path) -> None:
    final, seen, done = filled(tmp_path / "export", "0"), [], threading.Event()
    begun = threading.Event()

    def watch() -> None:
        while not done.is_set():
            try:
                seen.append((final / "one").read_text())
            except FileNotFoundError:
                seen.append("absent")
            begun.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun.wait()
    for number in range(1, 40):
        put_folder(filled(tmp_path / ".export.tmp", str(number)), final)
    done.set()
    watcher.join()
    assert "absent" not in seen and len(set(seen)) > 1
    assert damaged_files(final) == [] and [p.name for p in tmp_path.iterdir()] == ["export"]


class Killed(BaseException):
    """Nothing is done after it, as after kill -9."""


def killed_at(patch: pytest.MonkeyPatch, number: int, *, exchanges: bool) -> Check:
    """Kills this process at its so-manieth change of a file; what checks that it lives."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        check()

    def check() -> None:
        if done >= number:
            raise Killed

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: Any, **options: Any) -> object:
            count()
            return function(*args, **options)

        return call

    for name in ("mkdir", "write_text", "rename", "unlink"):
        patch.setattr(Path, name, counted(getattr(Path, name)))
    patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    to_be = atomic_folders.exchange if exchanges else lambda *_: False
    patch.setattr(atomic_folders, "exchange", counted(to_be))
    return check


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "renamed"])
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "unlisted"])
def test_whenever_it_is_killed_a_folder_is_whole_and_has_what_a_user_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool, exchanges: bool
) -> None:
    """Also one without a list of checksums, such as an earlier version's: nothing half-made gets
    into it."""
    whole: set[Path] = set()
    for number in range(1, 100):
        final = filled(tmp_path / f"export{number}", "0")
        (final / "mine.txt").write_text("mine")
        filled(final / "q8", "mine")
        if not listed:
            (final / SUMS).unlink()
        old = {path.name for path in final.iterdir()}
        new = {"new", "two", SUMS, "mine.txt", "q8"} | (set() if listed else {"one", "two.before"})
        killed = True
        with monkeypatch.context() as patch:
            check = killed_at(patch, number, exchanges=exchanges)
            with suppress(Killed), replaced_folder(final, check) as aside:
                filled(aside / "new", "1")
                (aside / "two").write_text("1")
                write_sums(aside)
            with suppress(Killed):
                check()
                killed = False
        finish_replacing(final)
        assert {path.name for path in final.iterdir()} in ([old, new] if killed else [new])
        assert (final / "mine.txt").read_text() == (final / "q8" / "one").read_text() == "mine"
        assert not damaged_files(final) and {*tmp_path.iterdir()} == {final, *whole}
        whole.add(final)
        if not killed:
            return
    raise AssertionError("it was never done")


@pytest.mark.parametrize("moment", ["done", "failed", "unlisted"])
def test_what_a_user_put_into_an_export_is_in_the_next_one(tmp_path: Path, moment: str) -> None:
    """Also where making that failed first."""
    final = filled(tmp_path / "export", "0")
    (final / "samples.jsonl").write_text("mine")
    filled(final / "q8", "mine")
    (final / "three").write_text("mine")
    if moment == "unlisted":
        (final / "sha256.json").unlink()
        (final / "three").unlink()
    with suppress(KeyboardInterrupt), replaced_folder(final) as aside:
        for name in ("one", "three"):
            (aside / name).write_text("2")
        write_sums(aside)
        if moment == "failed":
            raise KeyboardInterrupt
    assert (final / "samples.jsonl").read_text() == (final / "q8" / "one").read_text() == "mine"
    three = {"failed": "three", "unlisted": "samples.jsonl"}.get(moment, "three.before")
    assert (final / three).read_text() == "mine"
    assert damaged_files(final) == [] and list(tmp_path.iterdir()) == [final]


@pytest.mark.parametrize("listed", [True, False])
def test_what_a_user_wrote_into_an_export_stays(tmp_path: Path, listed: bool) -> None:
    """A card or a template is there to be edited. Also where the list of checksums was removed, as
    the line that refuses an edited export advises."""
    final = filled(tmp_path / "export", "0")
    (final / "model.safetensors").write_text("0")
    write_sums(final)
    for name in ("one", "model.safetensors"):
        (mine := tmp_path / name).write_text("mine")
        os.utime(mine, (0, 0))
        mine.rename(final / name)  # as old as it was
    if not listed:
        (final / SUMS).unlink()
    for content in ("0", "2"):
        with replaced_folder(final) as aside:
            for name in ("one", "two", "model.safetensors"):
                (aside / name).write_text(content)
            write_sums(aside)
    there = {path.name for path in final.iterdir()}
    kept = {"one.before", "model.safetensors.before"}
    assert there == {"one", "two", "model.safetensors", SUMS, *kept}
    assert {(final / name).read_text() for name in kept} == {"mine"}
    assert damaged_files(final) == []


def test_a_link_is_not_replaced_by_a_folder_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "export").symlink_to(filled(tmp_path / "elsewhere", "0"))
    with pytest.raises(ArmdError, match="export is a link"):
        put_folder(filled(tmp_path / ".export.tmp", "1"), tmp_path / "export")
    assert (tmp_path / "elsewhere" / "one").read_text() == "0"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_beside_a_new_folder(tmp_path: Path, number: signal.Signals):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as stopped, new_folder(tmp_path / "out") as aside:
            (aside / "half").write_text("")
            signal.raise_signal(number)
        assert stopped.value.code == 128 + number and not list(tmp_path.iterdir())
        assert signal.getsignal(number) == signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # as under nohup
        with new_folder(tmp_path / "out"):
            signal.raise_signal(number)
        assert (tmp_path / "out").is_dir()
    finally:
        signal.signal(number, before)


def test_who_reads_while_a_folder_is_replaced_reads_one_of_them(tmp_path: Path) -> None:
    place = filled(tmp_path / "place", "old")
    waiting = [filled(tmp_path / name, name) for name in ("new", "newer")]

    def read() -> set[str]:
        found = {(place / "one").read_text()}
        if waiting:
            put_folder(waiting.pop(0), place)
        found.add((place / "two").read_text())
        if len(found) > 1:
            raise ArmdError("damaged")
        return found

    assert unexchanged(place, read) == {"newer"}
    with pytest.raises(ArmdError, match="not empty"):
        unexchanged(place, lambda: refuse_full(place))


def test_what_comes_to_nothing_leaves_no_folder_above_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for above in ("new/too", "old/new", "old"):
        with pytest.raises(ArmdError, match="refused"), new_folder(tmp_path / above / "out"):
            raise ArmdError("refused")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    with new_folder(tmp_path / "new" / "too" / "out") as folder:
        (folder / "file").write_text("kept")
    assert (tmp_path / "new" / "too" / "out" / "file").read_text() == "kept"


def test_a_source_that_is_gone_is_not_called_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """Though it lies beside the folder that is made of it."""
    with pytest.raises(ArmdError, match=r"cannot read .*source"), new_folder(tmp_path / "out"):
        (tmp_path / "source").stat()
    with pytest.raises(ArmdError, match=r"cannot write .*out"), new_folder(tmp_path / "out") as new:
        (new / "gone" / "file").write_text("x")
