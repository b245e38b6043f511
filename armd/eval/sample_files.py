"""Texts to judge: sample files in their forms, and real text of the same length beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.formats import file_format
from ..errors import ArmdError
from ..runtime.atomic_files import is_device, write_text
from ..runtime.lock import locked

if TYPE_CHECKING:
    from .judge import Judge

SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Samples:
    """Texts to judge, with their own token ids where known."""

    texts: list[str]
    ids: list[list[int]] | None = None
    vocabulary: dict[str, int] | None = None
    """Which tokens the ids stand for."""
    facts: dict[str, Any] = field(default_factory=dict)


def read_samples(file: Path, judge: Judge, *, count: int, length: int) -> Samples:
    """Samples from a file. A .txt without <|endoftext|> is running text: it is cut into pieces of
    `length` tokens of the judge."""
    try:
        if file_format(file) == ".jsonl":
            return read_jsonl(file, count)
        with file.open(encoding="utf-8", newline="") as stream:  # line ends as they are
            text = stream.read(count * length * 16)
    except UnicodeDecodeError as error:
        raise ArmdError(f"{file} is no UTF-8 text: {error.reason} at byte {error.start}") from None
    if SEPARATOR in text:
        parts = [part.strip("\r\n") for part in text.split(SEPARATOR) if part.strip()][:count]
        facts: dict[str, Any] = {"form": f"texts parted by {SEPARATOR}"}
    else:
        (ids,) = judge.encode([text])
        starts = range(0, len(ids) - length + 1, length) if len(ids) >= length else [0]
        pieces = [ids[start : start + length] for start in islice(starts, count)]
        parts = judge.tokenizer.backend.decode_batch(pieces, skip_special_tokens=False)
        facts = {"form": f"running text in pieces of {length} judge tokens", "length": length}
    if not any(part.strip() for part in parts):
        raise ArmdError(f"{file} holds no samples; write some with armd eval samples MODEL --save")
    return Samples(parts, facts=facts)


def read_jsonl(file: Path, count: int) -> Samples:
    texts, ids, prompts = [], [], 0
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if len(texts) == count:
                break
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                texts.append(record["text"].encode("utf-8").decode())  # no halves of letters
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise ArmdError(f"{file} line {number} is no JSON object with a text") from None
            ids.append(record.get("ids"))
            prompts += bool(record.get("prompt"))
            if isinstance(ids[-1], list) and not all(_is_token(token) for token in ids[-1]):
                raise ArmdError(f"{file} line {number} has ids that are no tokens; leave them out")
    if not texts:
        raise ArmdError(f"{file} holds no samples; write some with armd eval samples MODEL --save")
    complete = all(isinstance(row, list) for row in ids)
    return Samples(
        texts, ids if complete else None, facts={"form": "JSON lines", "prompts": prompts}
    )


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


@contextmanager
def place_for(file: Path | None, *, overwrite: bool) -> Iterator[Callable[[Samples], str]]:
    """A function that saves samples in a file, which must be free now, or may be replaced, and is
    this process's meanwhile. It says what went wrong, if anything did."""
    if file is None:
        yield lambda _: ""
        return
    if file.is_dir():
        raise ArmdError(f"{file} is a folder; name a file for the samples")
    if is_device(file):
        yield partial(save_samples, file, overwrite=True)
        return
    if file.exists() and not overwrite:
        raise ArmdError(f"{file} is there already; name another file, or use --overwrite")
    file.parent.mkdir(parents=True, exist_ok=True)
    what = f"armd eval samples will write {file}"
    with locked(file.with_name(f".{file.name}.lock"), what, "wait for it, or name another file"):
        yield partial(save_samples, file, overwrite=overwrite)


def save_samples(file: Path, samples: Samples, *, overwrite: bool) -> str:
    """All of them or none: what was there stays until then. What came there meanwhile stays, too:
    the samples go into a file beside it."""
    rows = samples.ids or [None] * len(samples.texts)
    lines = (
        json.dumps({"text": text, "ids": ids}, ensure_ascii=False) + "\n"
        for text, ids in zip(samples.texts, rows, strict=True)
    )
    free = file
    try:
        free = file if overwrite else claimed(file)
        write_text(free, "".join(lines))
    except OSError as error:
        if not overwrite and free.is_file() and not free.stat().st_size:
            free.unlink()
        return f"{file} cannot be written ({error.strerror})"
    if free != file:
        print(f"armd: {file} was written meanwhile; the samples are in {free}", file=sys.stderr)
    return ""


def claimed(file: Path) -> Path:
    """The file, made here and now, or the first free name after it."""
    number, place = 0, file
    while True:
        try:
            place.open("x").close()
            return place
        except FileExistsError:
            number += 1
            place = file.with_name(f"{file.name}.{number}")


def heldout_samples(folder: Path, *, count: int, length: int, seed: int) -> Samples:
    """Real text: windows of a prepared dataset's held-out split, drawn without repetition."""
    import torch

    from ..data.dataset import open_dataset
    from ..runtime.seeds import seeded

    dataset = open_dataset(folder)
    split = dataset.split("heldout")
    windows = split.windows(length)
    if windows < count:
        raise ArmdError(
            f"{folder} holds out {windows} windows of {length} tokens, not {count}; "
            "lower --count or --length"
        )
    chosen = torch.randperm(windows, generator=seeded(seed))[:count].tolist()
    ids = [split.window(length, index).tolist() for index in chosen]
    if dataset.pad is not None:  # each is a document, its end and pads
        ends = (dataset.pad, dataset.eos)
        ids = [list(takewhile(lambda token: token not in ends, row)) for row in ids]
    backend = dataset.tokenizer().backend_tokenizer
    texts = backend.decode_batch(ids, skip_special_tokens=False)
    facts: dict[str, Any] = {
        "form": "windows of the held-out split",
        "length": length,
        "seed": seed,
    }
    return Samples(texts, ids, backend.get_vocab(), facts)
