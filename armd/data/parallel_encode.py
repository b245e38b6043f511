"""Documents to token bytes on all cores, in the order of the documents and in bounded memory: at
most a few tasks of about a million characters wait for each process."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import NamedTuple

import numpy as np

from ..errors import ArmdError
from .encoder import Encoder, pieces, word_pattern
from .formats import Document
from .split import draw

TASK_CHARACTERS = 1 << 20
TASK_DOCUMENTS = 1 << 13


@dataclass(frozen=True)
class Encoding:
    """All that decides the tokens of a document."""

    tokenizer_json: str
    dtype: str
    eos: int
    pad: int | None
    rows: int | None
    seed: int
    threshold: int


class Task(NamedTuple):
    texts: list[str]  # whole documents, or one part of a long one
    position: int
    heldout: bool | None = None  # known only for parts: the hash needs the whole document
    ends: bool = True


@dataclass
class Part:
    """What a task adds to one split."""

    tokens: list[bytes] = field(default_factory=list)
    documents: int = 0
    bytes: int = 0
    scored: int = 0
    cut: int = 0


class Worker:
    """Encodes tasks; one lives in each process."""

    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self.dtype = np.dtype(encoding.dtype).newbyteorder("<")
        self.encoder = Encoder(encoding.tokenizer_json, self.dtype)
        self.eos = np.array(encoding.eos, self.dtype).tobytes()
        self.pad = np.array(encoding.pad or 0, self.dtype).tobytes()

    def __call__(self, task: Task) -> dict[str, Part]:
        parts = {"train": Part(), "heldout": Part()}
        for text, tokens in zip(task.texts, self.encoder.encode(task.texts), strict=True):
            document = text.encode()
            heldout = task.heldout
            if heldout is None:
                heldout = draw(self.encoding.seed, document) < self.encoding.threshold
            part = parts["heldout" if heldout else "train"]
            part.bytes += len(document)
            self.add(part, tokens, ends=task.ends)
        for part in parts.values():
            part.tokens = [b"".join(part.tokens)]
        return parts

    def add(self, part: Part, tokens: bytes, *, ends: bool) -> None:
        width = self.dtype.itemsize
        part.documents += ends
        if ends:
            tokens += self.eos
        if self.encoding.rows is not None:
            room = self.encoding.rows * width
            part.cut += len(tokens) > room
            tokens = tokens[:room]
        part.scored += len(tokens) // width
        part.tokens.append(tokens)
        if self.encoding.rows is not None:
            part.tokens.append(self.pad * (self.encoding.rows - len(tokens) // width))


def tasks(documents: Iterable[Document], encoding: Encoding) -> Iterator[Task]:
    """Documents in groups of about a million characters; longer ones cut where no token lies."""
    pattern = word_pattern(Encoder(encoding.tokenizer_json, np.dtype(encoding.dtype)).tokenizer)
    texts, size, position = [], 0, 0
    for text, position in documents:
        if len(text) > 2 * TASK_CHARACTERS and encoding.rows is None and pattern is not None:
            if texts:
                yield Task(texts, position)
                texts, size = [], 0
            yield from long_document(text, position, encoding, pattern)
            continue
        texts.append(text)
        size += len(text)
        if size >= TASK_CHARACTERS or len(texts) >= TASK_DOCUMENTS:
            yield Task(texts, position)
            texts, size = [], 0
    if texts:
        yield Task(texts, position)


def long_document(text: str, position: int, encoding: Encoding, pattern) -> Iterator[Task]:
    heldout = draw(encoding.seed, text.encode()) < encoding.threshold
    done = 0
    for piece in pieces(text, pattern, TASK_CHARACTERS):
        done += len(piece)
        yield Task([piece], position, heldout, ends=done == len(text))


_worker: Worker | None = None


def start_worker(encoding: Encoding) -> None:
    """In a new process: Ctrl-C is the parent's to handle, and nobody outlives the parent."""
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=leave_with, args=(parent.sentinel,), daemon=True).start()
    _worker = Worker(encoding)


def leave_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def work(task: Task) -> dict[str, Part]:
    assert _worker is not None
    return _worker(task)


def encode_all(
    documents: Iterable[Document], encoding: Encoding, *, workers: int
) -> Iterator[tuple[int, dict[str, Part]]]:
    """(position, parts) of each task, in order, whatever the number of workers."""
    if workers == 1:
        worker = Worker(encoding)
        for task in tasks(documents, encoding):
            yield task.position, worker(task)
        return
    # Not fork: the caller may run threads (torch, tokenizers) that a fork would break.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(encoding,))
    waiting = deque()
    try:
        for task in tasks(documents, encoding):
            waiting.append((task.position, pool.submit(work, task)))
            if len(waiting) > 2 * workers:
                position, future = waiting.popleft()
                yield position, future.result()
        for position, future in waiting:
            yield position, future.result()
    except BrokenProcessPool:
        raise ArmdError(
            "a worker process ended too early: out of memory, or a script without "
            "`if __name__ == '__main__':`; --workers 1 needs no processes"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
