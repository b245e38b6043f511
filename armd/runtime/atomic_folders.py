"""Folders that appear whole or not at all, and take the place of others in one step."""

import ctypes
import errno
import filecmp
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..model.errors import ArmdError
from .atomic_files import (
    SUMS,
    hash_file,
    read_sums,
    refuse_link,
    remove,
    sync_folder,
    sync_tree,
)
from .lock import Check, locked, unchecked
from .signals import raise_if_stopped, terminated_as_interrupt

TRIES = 10
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
MOUNTS = Path("/proc/self/mountinfo")
MODEL_FILES = (".safetensors", ".json", ".gguf", ".model", ".txt", ".jinja")
Found = TypeVar("Found")


def put_folder(aside: Path, final: Path, check: Check = unchecked) -> None:
    """Put a finished folder in place of another. The two are exchanged at once where the system
    can, so that `final` is never absent; elsewhere it is for a moment, and finish_replacing puts
    the old one back."""
    refuse_link(final)
    sync_tree(aside)
    check()
    old = old_of(final)
    if final.is_dir():
        aside.rename(old)  # whole from here on
        if not exchange(old, final):
            old.rename(aside)
            final.rename(old)
            aside.rename(final)
    else:
        aside.rename(final)
    sync_folder(final.parent)
    remove_all_but_others(old, final)


def remove_all_but_others(old: Path, final: Path) -> None:
    """Remove a whole folder that another has taken the place of, or that was to take its place.
    What the user put there moves to the folder that is there now."""
    if old.is_dir() and not old.is_symlink():
        move_users_files(old, final)
        for path in (path for path in old.iterdir() if path.name != SUMS):
            remove(path)  # the list last: whoever is killed here goes on by it
    remove(old)


def remove_at_once(folder: Path, final: Path) -> None:
    """The same, of a folder that nothing takes the place of: it is there whole, or not at all."""
    if folder.is_dir() and not folder.is_symlink():
        move_users_files(folder, final)
        remove(half_of(folder))
        folder.rename(half_of(folder))  # which goes with the next folder that is written here
    remove(half_of(folder))


def move_users_files(old: Path, final: Path) -> None:
    """Those that are not in the folder's list of checksums, or no longer as they were listed."""
    for path in users_files(old, final):
        if same_files(path, final / path.name):
            continue
        taken = os.path.lexists(final / path.name)
        try:
            path.rename(final / f"{path.name}{'.before' * taken}")
        except OSError as error:
            raise ArmdError(
                f"cannot move {path}, which is not armd's, to {final} ({error.strerror}); put it "
                "elsewhere and give the command again"
            ) from None


def users_files(old: Path, final: Path) -> list[Path]:
    """All but what its list names and is as it was written. Without a list: what the other folder
    has not, or has otherwise. Dates tell nothing: those of a folder that was copied are its own."""
    try:
        sums = read_sums(old)
    except (OSError, ValueError):
        sums = None
    ours = {SUMS}
    for path in old.iterdir():
        name, plain = path.name, path.is_file() and not path.is_symlink()
        if sums is None:
            there = final / name
            mine = (there.exists() and not plain) or same_files(path, there)
        elif name in sums:
            mine = not plain or hash_file(path) == sums[name]
        else:
            mine = any(listed.startswith(f"{name}/") for listed in sums)
        ours |= {name} if mine else set()
    return sorted(path for path in old.iterdir() if path.name not in ours)


def same_files(one: Path, two: Path) -> bool:
    """Whether the two are files, and what they hold is the same."""
    found = all(path.is_file() and not path.is_symlink() for path in (one, two))
    return found and filecmp.cmp(one, two, shallow=False)


def finish_replacing(out: Path) -> None:
    """What a process that was killed while it replaced this folder had left to do."""
    remove(half_of(out))
    refuse_link(out)
    old = old_of(out)
    if not os.path.lexists(out) and old.is_dir() and not old.is_symlink():
        old.rename(out)
    remove_all_but_others(old, out)


def half_of(out: Path) -> Path:
    """The folder that is being written, and takes the place of this one when it is whole."""
    return out.with_name(f".{out.name}.tmp")


def old_of(out: Path) -> Path:
    """The folder that this one took the place of. Just before that, the one that is to take it."""
    return out.with_name(f".{out.name}.old")


@contextmanager
def replaced_folder(out: Path, check: Check = unchecked) -> Iterator[Path]:
    """An empty folder to write into, which takes the place of `out`, whatever is there, unless
    something is raised, such as by `check`: then it goes, unless it is another's by now."""
    check()
    finish_replacing(out)
    try:
        yield (aside := empty_folder(half_of(out)))
        put_folder(aside, out, check)
    except BaseException:
        check()
        finish_replacing(out)
        raise


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Inside, a folder is there. Made for something that comes to nothing, it goes again, and so do
    those above it that were made with it: a command that is refused leaves nothing."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in new:
            with suppress(OSError):  # it holds something
                path.rmdir()


@contextmanager
def new_folder(out: Path, *, writer: str = "process") -> Iterator[Path]:
    """An empty folder to write into, which takes the place of `out`, a new or empty folder, unless
    something is raised. One process at a time does so; `writer` names it to others."""
    refuse_link(out)
    refuse_full(out)
    refuse_fixed(out)
    final = Path(os.path.abspath(out))  # `..` has no name
    aside = half_of(final)
    try:
        lock = locked(aside.with_suffix(".lock"), f"{writer} is writing {out}", "wait for it")
        with terminated_as_interrupt(), made_folder(final.parent), lock as held:
            refuse_full(out)
            try:
                yield empty_folder(aside)
                sync_tree(aside)
                raise_if_stopped()
                held.check()
                aside.rename(final)  # fails where something was put there meanwhile
                sync_folder(final.parent)
            finally:
                if held.ours():
                    shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArmdError(f"no space left for {out}; nothing was kept, free some") from None
        reason, named = error.strerror or str(error), str(error.filename or final)
        place = os.path.abspath(named)
        ours = place.startswith(str(aside.with_suffix(""))) or str(final).startswith(place)
        if not ours:  # what it is made of
            raise ArmdError(f"cannot read {named}: {reason}; give the command again") from None
        raise ArmdError(f"cannot write {out}: {reason}; choose another folder") from None


def refuse_fixed(out: Path) -> None:
    """Raise, before any work is done, for a folder that no other can be renamed to."""
    if out.exists() and out.samefile(Path.cwd()):
        raise ArmdError(f"{out} is the working folder; name a new one, such as {out / 'new'}")
    if is_mount(out):
        raise ArmdError(f"{out} is a mount point; name a new folder in it, such as {out / 'new'}")


def is_mount(path: Path) -> bool:
    """Also of a part of the same file system, which os.path.ismount does not see."""
    if not path.exists() or os.path.ismount(path):
        return path.exists()
    real = str(path.resolve()).replace("\\", "\\134").replace(" ", "\\040")
    try:
        lines = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:  # not on Linux
        return False
    return any(line.split(" ")[4] == real for line in lines)


def empty_folder(path: Path) -> Path:
    """A new folder to write into, in place of what a killed process left. It is never one that was
    there: a link in its place would lead what we write to somewhere else."""
    remove(path)
    path.mkdir(parents=True)
    return path


def our_folder(path: Path) -> Path:
    """A folder inside one of ours, made where there is none."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def unexchanged(folder: Path, work: Callable[[], Found]) -> Found:
    """What `work` finds in a folder. Where another process put another folder in its place
    meanwhile (put_folder), it may have read files of both, and is done again."""
    for _ in range(TRIES):
        before = identity(folder)
        try:
            found = work()
        except Exception:
            if identity(folder) == before:
                raise
        else:
            if identity(folder) == before:
                return found
    return work()


def watched(place: Path) -> Callable[[], None]:
    """A function that raises if a file, or a model's file in a folder, was written to or replaced
    since: to be called when all of it was read, because two versions together are no model."""

    def stamps() -> list[tuple[object, ...]]:
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        found: list[tuple[object, ...]] = [(identity(place),)]
        for path in (p for p in files if p.suffix in MODEL_FILES and p.is_file()):
            facts = path.stat()
            found.append((path.name, identity(path), facts.st_size, facts.st_mtime_ns))
        return found

    before = stamps()

    def check() -> None:
        with suppress(FileNotFoundError):
            if stamps() == before:
                return
        raise ArmdError(f"{place} was replaced while it was read; give the command again")

    return check


def identity(path: Path) -> tuple[int, int] | None:
    """Of what has this name now; None for nothing."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def refuse_full(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArmdError(f"{out} is not empty; choose another folder")


def exchange(one: Path, two: Path) -> bool:
    """Exchange two names in one step (renameat2, Linux); False where that is not to be had."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = (os.fsencode(one.absolute()), os.fsencode(two.absolute()))
    return rename(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0
