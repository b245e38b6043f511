"""A folder has one writer: a lock file that the system frees even if its holder is killed."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ..model.errors import ArmdError


@contextlib.contextmanager
def locked(path: Path, what: str, fix: str) -> Iterator[None]:
    """Hold the lock file at `path`. Raises, naming the holder, if another process has it; `what`
    says which command does what ("armd prepare is writing X"), `fix` what to do about it."""
    handle = _take(path, what, fix)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is still ours: the next one makes a new file
        os.close(handle)


def _take(path: Path, what: str, fix: str) -> int:
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                return handle  # a file system without locks: nothing can be promised there
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
                return handle
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
