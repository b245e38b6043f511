"""The tokens of a shard, read from its file. A mapped file would be simpler, but the system ends a
process (SIGBUS) that reads a mapped file after another process cut it."""

import hashlib
import os
from pathlib import Path

import numpy as np

from ..errors import ArmdError

PIECE = 1 << 22
"""Bytes that are read at once when a whole shard is checked."""
Stamp = tuple[int, ...]


class ShardFile:
    """A shard that stays open: removed or replaced, it is still read as it was."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype = path, np.dtype(dtype).newbyteorder("<")
        try:
            self.handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ArmdError(f"cannot read {path}: {error.strerror}") from None

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)

    @property
    def stamp(self) -> Stamp:
        """Changes when somebody writes into the file."""
        facts = os.fstat(self.handle)
        return facts.st_ino, facts.st_size, facts.st_mtime_ns

    def read(self, start: int, end: int) -> np.ndarray:
        """The tokens from `start` up to `end`."""
        width = self.dtype.itemsize
        at, size = start * width, (end - start) * width
        data = os.pread(self.handle, size, at)
        while len(data) < size:  # the system gives at most 2 GB at a time
            more = os.pread(self.handle, size - len(data), at + len(data))
            if not more:
                raise self.changed()
            data += more
        return np.frombuffer(data, self.dtype)

    def check(self, sha256: str, vocab_size: int) -> Stamp:
        """Raise unless the file has this checksum and no token beyond the vocabulary. Returns the
        stamp that it had before."""
        stamp, digest, at = self.stamp, hashlib.sha256(), 0
        largest = -1
        while data := os.pread(self.handle, PIECE, at):
            digest.update(data)
            at += len(data)
            whole = len(data) // self.dtype.itemsize
            largest = max(largest, int(np.frombuffer(data, self.dtype, whole).max(initial=0)))
        if digest.hexdigest() != sha256:
            folder = self.path.parent
            raise ArmdError(f"{self.path} is damaged (checksum); remove {folder}, prepare again")
        if largest >= vocab_size:
            raise ArmdError(f"{self.path} holds tokens beyond its vocabulary; prepare it again")
        return stamp

    def changed(self) -> ArmdError:
        return ArmdError(
            f"{self.path} was changed while it was read; put the old one back and give the same "
            "command again"
        )
