"""Token files: written in order, cut into shards, with checksums."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArmdError

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
