"""Work whose time grows with a request runs in threads, so that the event loop stays free."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Answer = TypeVar("Answer")
INLINE = 4096
"""Places of a plan, or entries of an answer, that are worked on at once, on the event loop; and
characters of a text that is short."""
THREADS = 2
"""Of each kind. Few: each thread that runs Python keeps the event loop waiting for some
milliseconds."""


class SmallestFirst:
    """A thread pool that takes the smallest waiting job first, so that small jobs wait only for
    what is already running. Every second job taken is the oldest, so that large ones do not
    starve."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads, self.lock = ThreadPoolExecutor(threads, name), threading.Lock()
        self.waiting: list[tuple[int, Callable[[], Any], Future[Any]]] = []
        self.oldest_next = False

    def submit(self, size: int, work: Callable[[], Answer]) -> "Future[Answer]":
        future: Future[Answer] = Future()
        with self.lock:
            self.waiting.append((size, work, future))
        self.threads.submit(self._run)
        return future

    def _take(self) -> tuple[Callable[[], Any], "Future[Any]"]:
        with self.lock:
            oldest, self.oldest_next = self.oldest_next, not self.oldest_next
            taken = self.waiting[0] if oldest else min(self.waiting, key=lambda one: one[0])
            self.waiting.remove(taken)
        return taken[1:]

    def _run(self) -> None:
        settle(*self._take())


def settle(work: Callable[[], Answer], future: "Future[Answer]") -> None:
    """Run the work and set the future, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


def fail(futures: Iterable["Future[Any]"], error: Exception) -> None:
    """Nobody will work on them any more."""

    def work() -> None:
        raise error

    for future in futures:
        settle(work, future)


_short_work, _long_work = (SmallestFirst(THREADS, f"{kind}-work") for kind in ("short", "long"))


async def aside(size: int, work: Callable[[], Answer]) -> Answer:
    """Work on a request or an answer of this size: in a thread where it takes long."""
    return await asyncio.wrap_future(_long_work.submit(size, work)) if size > INLINE else work()


async def encoding(size: int, work: Callable[[], Answer], places: int = 0) -> Answer:
    """Work that encodes `size` characters and plans `places` positions. The regular expressions of
    a foreign tokenizer may take minutes for a short text, so none of it runs on the event loop;
    short texts have threads of their own and do not wait for long ones."""
    if 0 < size <= INLINE and places <= 4 * INLINE:
        return await asyncio.wrap_future(_short_work.submit(size, work))
    return await aside(max(size, places), work)
