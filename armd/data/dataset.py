"""A prepared dataset: what its manifest says, and windows of tokens from its shards."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArmdError, first_line
from ..model.folder_check import check_inside
from ..runtime.atomic_files import hash_file, read_plain_files
from .manifest import DTYPES, read_manifest
from .shard_file import ShardFile, Stamp

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MOST_OPEN = 256
"""Shards that a split keeps open: a shell allows a process 1,024 files or fewer."""


@dataclass(frozen=True)
class Dataset:
    """A dataset folder. Open it with `open_dataset`."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        return self.manifest["tokenizer"]["vocab_size"]

    @property
    def eos(self) -> int:
        return self.manifest["tokenizer"]["eos"]

    @property
    def pad(self) -> int | None:
        """The token that fills rows, never scored; None where documents are packed."""
        return self.manifest["tokenizer"]["pad"]

    @property
    def rows(self) -> int | None:
        """Tokens a row, if each document is a row."""
        return self.manifest["rows"]

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> "PreTrainedTokenizerFast":
        """Read once: another dataset may take this one's place while it is used."""
        from transformers import PreTrainedTokenizerFast

        from .tokenizer_files import check_tokenizer_files

        check_tokenizer_files(self.folder / "tokenizer")
        place = str(self.folder / "tokenizer")
        try:
            loaded = PreTrainedTokenizerFast.from_pretrained(place, local_files_only=True)
        except Exception as error:  # its readers raise many kinds
            reason = first_line(error)
            raise ArmdError(
                f"the tokenizer in {place} is damaged ({reason}); remove {self.folder} and prepare "
                "it again"
            ) from None
        self.check_tokenizer(loaded)
        return loaded

    def tokenizer_files(self) -> dict[str, bytes]:
        """The files that `tokenizer` is made of, as they are now, by name. Models are written
        beside copies of them, so whatever else lies there is left out."""
        from .tokenizer_files import FILES

        self.tokenizer()
        found = read_plain_files(self.folder / "tokenizer")
        return {name: found[name] for name in FILES if name in found and name != "config.json"}

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise unless `tokenizer` (of transformers or tokenizers) is the dataset's own."""
        from .tokenizer import tokenizer_hash

        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if tokenizer_hash(backend) != self.manifest["tokenizer"]["hash"]:
            name = self.manifest["tokenizer"]["name"]
            raise ArmdError(
                f"this tokenizer is not the one of {self.folder} ({name}); "
                f"use {self.folder / 'tokenizer'} or prepare the text again"
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise if a model of `vocab_size` has no entry for some of the tokens."""
        if vocab_size < self.vocab_size:
            raise ArmdError(
                f"vocabulary of {vocab_size} is too small for {self.folder}: "
                f"its tokenizer needs vocab_size {self.vocab_size}"
            )

    def split(self, name: str) -> "Split":
        splits = self.manifest["splits"]
        if name not in splits:
            raise ArmdError(f"{self.folder} has no split '{name}', only {', '.join(splits)}")
        return Split(self, name)


@dataclass(frozen=True)
class Split:
    """The tokens of one split, as if in one array."""

    dataset: Dataset
    name: str

    @property
    def shards(self) -> list[dict[str, Any]]:
        return self.dataset.manifest["splits"][self.name]["shards"]

    @property
    def n_tokens(self) -> int:
        """Stored tokens, pads included."""
        return self.dataset.manifest["splits"][self.name]["tokens"]

    @cached_property
    def starts(self) -> list[int]:
        """Where each shard starts, and where the last one ends."""
        return list(accumulate((shard["tokens"] for shard in self.shards), initial=0))

    @cached_property
    def opened(self) -> dict[int, ShardFile]:
        """The shards that are open, the oldest first."""
        return {}

    @cached_property
    def checked(self) -> dict[int, Stamp]:
        """The shards whose checksums were compared, and the stamps of their files then."""
        return {}

    def shard(self, index: int) -> ShardFile:
        """A shard; its checksum and its token ids are checked the first time."""
        if index in self.opened:
            return self.opened[index]
        record, manifest = self.shards[index], self.dataset.manifest
        path = self.dataset.folder / record["file"]
        check_shard(path, record, DTYPES[manifest["dtype"]], verify=False)
        found = ShardFile(path, manifest["dtype"])
        if self.checked.get(index) != found.stamp:
            self.checked[index] = found.check(record["sha256"], self.dataset.vocab_size)
        if len(self.opened) >= MOST_OPEN:
            oldest = next(iter(self.opened))
            self._check_unchanged(oldest, self.opened[oldest])
            del self.opened[oldest]
        self.opened[index] = found
        return found

    def check_unchanged(self) -> None:
        """Raise if somebody wrote into a shard since it was first read. Another file under its name
        is not read."""
        for index, shard in list(self.opened.items()):  # another thread may open more
            self._check_unchanged(index, shard)

    def _check_unchanged(self, index: int, shard: ShardFile) -> None:
        if shard.stamp == self.checked[index]:
            return
        try:  # the same tokens may have been written again
            self.checked[index] = shard.check(self.shards[index]["sha256"], self.dataset.vocab_size)
        except ArmdError:
            raise shard.changed() from None

    def windows(self, length: int) -> int:
        """Full windows of `length`; the rows, if each document is a row."""
        rows = self.dataset.rows
        if length < 1 or (rows is not None and length != rows):
            raise ArmdError(f"{self.dataset.folder} has rows of {rows} tokens, not {length}")
        return self.n_tokens // length

    def window(self, length: int, index: int, offset: int = 0) -> np.ndarray:
        """Window `index` of those that start at `offset`; the stream wraps around at its end."""
        windows = self.windows(length)
        if not 0 <= index < windows:
            raise IndexError(f"window {index} of {windows}")
        return self.gather(length, np.array([index * length + offset]))[0]

    def gather(self, length: int, begins: np.ndarray) -> np.ndarray:
        """(len(begins), length) tokens as int64, each row from its own place of the stream."""
        out = np.empty((len(begins), length), dtype=np.int64)
        for row, begin in zip(out, (begins % max(self.n_tokens, 1)).tolist(), strict=True):
            self.read_into(row, begin)
        return out

    def read_into(self, row: np.ndarray, begin: int) -> None:
        filled = 0
        while filled < len(row):
            shard = bisect_right(self.starts, begin) - 1
            inside = begin - self.starts[shard]
            upto = min(inside + len(row) - filled, self.starts[shard + 1] - self.starts[shard])
            part = self.shard(shard).read(inside, upto)
            row[filled : filled + len(part)] = part
            filled += len(part)
            begin = (begin + len(part)) % self.n_tokens

    def tail(self, length: int) -> np.ndarray:
        """The tokens after the last full window: fewer than `length`, maybe none."""
        begin = self.windows(length) * length
        return self.gather(self.n_tokens - begin, np.array([begin]))[0]


def open_dataset(folder: Path | str, *, verify: bool = False) -> Dataset:
    """The dataset in `folder`; `verify` reads every shard to compare its checksum. Without it, a
    shard's checksum is compared when the shard is first read."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    width = DTYPES[manifest["dtype"]]
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            check_shard(folder / shard["file"], shard, width, verify=verify)
    check_inside(folder)
    return Dataset(folder, manifest)


def check_shard(path: Path, shard: dict[str, Any], width: int, *, verify: bool) -> None:
    """Raise unless the shard is a file of this very folder, of the right size and checksum."""
    if path.is_symlink():
        raise ArmdError(f"{path} is a symbolic link, which may lead anywhere; put the file there")
    size = path.stat().st_size if path.is_file() else None
    if size != shard["tokens"] * width:
        what = "is missing" if size is None else f"has {size} bytes, not {shard['tokens'] * width}"
        raise ArmdError(f"{path} {what}; remove {path.parent} and prepare it again")
    if verify and hash_file(path) != shard["sha256"]:
        raise ArmdError(f"{path} is damaged (checksum); remove {path.parent}, prepare again")
