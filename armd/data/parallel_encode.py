"""Documents to token bytes on all cores, in the order of the documents and in bounded memory: at
most a few tasks of about a million characters wait for each process."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from ..errors import ArmdError
from .encoder import Encoder, word_pattern
from .formats import Document
from .split import draw
from .text_pieces import pieces

TASK_CHARACTERS = 1 << 20
TASK_DOCUMENTS = 1 << 13
TASKS_WAITING = 3
"""Tasks that a process may have."""


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
            yield from long_document(text, position, encoding)
            continue
        texts.append(text)
        size += len(text)
        if size >= TASK_CHARACTERS or len(texts) >= TASK_DOCUMENTS:
            yield Task(texts, position)
            texts, size = [], 0
    if texts:
        yield Task(texts, position)


def long_document(text: str, position: int, encoding: Encoding) -> Iterator[Task]:
    heldout = draw(encoding.seed, text.encode()) < encoding.threshold
    done = 0
    for piece in pieces(text, TASK_CHARACTERS):
        done += len(piece)
        yield Task([piece], position, heldout, ends=done == len(text))


class WorkerProcess:
    """A process that encodes the tasks it is sent, one after the other."""

    def __init__(self, encoding: Encoding) -> None:
        # Not fork: the caller may run threads (torch, tokenizers) that a fork would break.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, encoding), daemon=True)
        with signals_not_inherited():
            self.process.start()
        theirs.close()

    def send(self, task: Task) -> None:
        with self.there():
            self.pipe.send(task)

    def result(self) -> dict[str, Part]:
        """Of the oldest task whose result was not taken."""
        with self.there():
            found = self.pipe.recv()
        if isinstance(found, Exception):
            raise found
        return found

    @contextmanager
    def there(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            raise ArmdError(
                "a worker process ended too early: out of memory, or a script without "
                "`if __name__ == '__main__':`; --workers 1 needs no processes"
            ) from None


@contextmanager
def signals_not_inherited() -> Iterator[None]:
    """Ctrl-C and a closed terminal reach a whole group of processes, and are the parent's to
    handle. A process that starts with them blocked keeps them so, and they wait for us meanwhile.
    """
    resource_tracker.ensure_running()  # else it is started now, and unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(parent: Connection, encoding: Encoding) -> None:
    """In the process: take tasks as they come, so that the parent never waits to send one."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    waiting: SimpleQueue[Task] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                waiting.put(parent.recv())
        finally:
            os._exit(1)  # the parent is gone, and nobody outlives it

    threading.Thread(target=receive, daemon=True).start()
    worker = Worker(encoding)
    while True:
        task = waiting.get()
        try:
            found = worker(task)
        except Exception as error:
            found = error
        with suppress(OSError):  # the parent is gone, and so are we in a moment
            parent.send(found)


def encode_all(
    documents: Iterable[Document], encoding: Encoding, *, workers: int
) -> Iterator[tuple[int, dict[str, Part]]]:
    """(position, parts) of each task, in order, whatever the number of workers. They have tasks in
    turn, so the oldest result is always that of the worker whose turn it is."""
    if workers == 1:
        worker = Worker(encoding)
        for task in tasks(documents, encoding):
            yield task.position, worker(task)
        return
    processes: list[WorkerProcess] = []
    waiting: deque[tuple[int, WorkerProcess]] = deque()
    try:
        for number, task in enumerate(tasks(documents, encoding)):
            if number < workers:
                processes.append(WorkerProcess(encoding))
            if len(waiting) == TASKS_WAITING * workers:
                position, process = waiting.popleft()
                yield position, process.result()
            processes[number % workers].send(task)
            waiting.append((task.position, processes[number % workers]))
        for position, process in waiting:
            yield position, process.result()
    finally:
        for process in processes:
            process.process.kill()
