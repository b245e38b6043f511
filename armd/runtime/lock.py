"""A folder has one writer: a lock file that the system frees even if its holder is killed."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..model.errors import ArmdError

Check = Callable[[], None]
"""Raises if what is to be written to is another's by now."""


def unchecked() -> None:
    """The check of a folder that nobody else knows of."""


class Held:
    """A file or folder that is open here. Who removes or moves the folder it lies in takes it
    along, and who begins there again makes another."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self.handle = path, handle

    def ours(self) -> bool:
        """Whether its path still names it."""
        try:
            return os.path.samestat(os.fstat(self.handle), self.path.stat())
        except OSError:
            return False

    def check(self, lost: str = "") -> None:
        """Raise `lost` unless it is still ours."""
        if not self.ours():
            usual = f"{self.path.parent} was removed or replaced meanwhile; nothing was written"
            raise ArmdError(lost or usual)


@contextlib.contextmanager
def locked(path: Path, what: str, fix: str) -> Iterator[Held]:
    """Hold the lock file at `path`. Raises, naming the holder, if another process has it; `what`
    says which command does what ("armd prepare is writing X"), `fix` what to do about it."""
    held = _take(path, what, fix)
    try:
        yield held
    finally:
        if held.ours():  # the next one makes a new file
            path.unlink(missing_ok=True)
        os.close(held.handle)


@contextlib.contextmanager
def locked_elsewhere(folder: Path) -> Iterator[Held]:
    """A folder that another process of ours has locked."""
    held = Held(folder, os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
    try:
        yield held
    finally:
        os.close(held.handle)


def _take(path: Path, what: str, fix: str) -> Held:
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                os.close(handle)  # a file system without locks: only the folder can be watched
                return Held(path.parent, os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC))
            holder = _holder(path)
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise ArmdError(f"another {what}{holder}; {fix}") from None
        # whoever held it before may have removed the file between our open and our lock
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                os.ftruncate(handle, 0)
                who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.ctime()}
                os.write(handle, json.dumps(who).encode())
                return Held(path, handle)
        os.close(handle)


def _holder(path: Path) -> str:
    """Who wrote the lock file, in words; nothing where it cannot be read."""
    try:
        who = json.loads(path.read_text("utf-8"))
        return (
            f" (pid {int(who['pid'])} on {str(who['host'])[:60]}, since {str(who['since'])[:30]})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ""
