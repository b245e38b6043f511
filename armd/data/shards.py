"""Token files: written in order, cut into shards, with checksums; and a folder that appears
under its name only when it is complete."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArmdError
from ..runtime.atomic_files import empty_folder, made_folder, sync_folder
from ..runtime.lock import locked
from ..runtime.signals import raise_if_stopped

MOST_SHARDS = 10**5
"""Of a split. More are a mistake: each is a file, which is opened and hashed by itself."""


class ShardWriter:
    """Appends token bytes to numbered files of at most `shard_tokens` tokens."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype, shard_tokens: int):
        self.folder, self.split, self.dtype = folder, split, dtype
        self.limit = shard_tokens * dtype.itemsize
        self.shards: list[dict[str, Any]] = []
        self.file, self.room, self.digest = None, 0, hashlib.sha256()

    def write(self, tokens: bytes) -> None:
        rest = memoryview(tokens)
        while rest:
            if self.file is None:
                self.begin()
            part, rest = rest[: self.room], rest[self.room :]
            self.file.write(part)  # pyright: ignore[reportOptionalMemberAccess]
            self.digest.update(part)
            self.room -= len(part)
            if self.room == 0:
                self.close()

    def begin(self) -> None:
        if len(self.shards) == MOST_SHARDS:
            raise ArmdError(f"over {MOST_SHARDS:,} shards of a split; raise --shard-tokens")
        self.name = f"{self.split}-{len(self.shards):05d}.bin"
        self.file = (self.folder / self.name).open("wb")
        self.room, self.digest = self.limit, hashlib.sha256()

    def close(self) -> None:
        """Finish the open shard, if any."""
        if self.file is None:
            return
        file, self.file = self.file, None
        with file:
            file.flush()
            os.fsync(file.fileno())
        tokens = (self.limit - self.room) // self.dtype.itemsize
        record = {"file": self.name, "tokens": tokens, "sha256": self.digest.hexdigest()}
        self.shards.append(record)


class WindowWriter:
    """Cuts a stream of tokens into windows of BOS, `length` - 2 tokens, EOS, as MDLM and BD3-LM do;
    what is left at the end is dropped."""

    def __init__(self, writer: ShardWriter, length: int, bos: int, eos: int) -> None:
        self.writer, self.rest = writer, b""
        self.bos, self.eos = (np.array(token, writer.dtype).tobytes() for token in (bos, eos))
        self.room = (length - 2) * writer.dtype.itemsize

    @property
    def shards(self) -> list[dict[str, Any]]:
        return self.writer.shards

    def write(self, tokens: bytes) -> None:
        self.rest += tokens
        whole = len(self.rest) // self.room * self.room
        for start in range(0, whole, self.room):
            self.writer.write(self.bos + self.rest[start : start + self.room] + self.eos)
        self.rest = self.rest[whole:]

    def close(self) -> None:
        self.writer.close()


@contextmanager
def complete_folder(final: Path) -> Iterator[Path]:
    """A folder to fill, renamed to `final` at the end, removed if anything stops us before. What
    a killed run left behind goes when the next one starts: it cannot hold the lock any more."""
    staging = final.parent / f".{final.name}.preparing"
    lock = final.parent / f".{final.name}.preparing.lock"
    try:
        ours = locked(lock, f"armd prepare is writing {final}", "wait for it")
        with made_folder(final.parent), ours as held:
            try:
                yield empty_folder(staging)
                raise_if_stopped()
                held.check()
                os.rename(staging, final)
                sync_folder(final.parent)
            finally:
                if held.ours():
                    shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArmdError(f"no space left for {final}; nothing was kept, free some") from None
        reason = error.strerror or str(error)
        raise ArmdError(f"cannot write {final}: {reason} ({error.filename})") from None
