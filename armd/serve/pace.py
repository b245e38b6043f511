"""What costs the event loop much is done at bounded rates, of all clients together, so that others
need not wait for it."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

RATES = {
    "chunks": 50_000,  # of very small chunks: each costs as much as hundreds of bytes
    "reads": 64 << 20,  # of bytes that come many at once
    "bodies": 16 << 20,  # of bytes of large bodies that are read for their requests
    "unused": 16 << 20,  # of bytes of bodies that go on when their requests are answered
}
"""A second."""
STARTS = 64
"""Requests that are begun in an iteration of the loop."""
CREDIT = 0.05
"""Seconds that an iteration of the loop may catch up with: under load they are long."""


class Pace:
    """Of one event loop. Work of the lowest rank comes first; it says what it has cost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float) -> None:
        self.loop, self.rate, self.number = loop, rate, count()
        self.waiting: list[tuple[tuple[int, ...], int, Callable[[], int]]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.free_at, self.working = 0.0, False

    def add(self, rank: tuple[int, ...], work: Callable[[], int]) -> None:
        heapq.heappush(self.waiting, (rank, next(self.number), work))
        self._go_on()

    def _go_on(self) -> None:
        if self.timer is None and self.waiting and not self.working:
            wait = max(0.0, self.free_at - self.loop.time())
            self.timer = self.loop.call_later(wait, self._work)

    def _work(self) -> None:
        now = self.loop.time()
        self.free_at = max(self.free_at, now - CREDIT)
        self.timer, self.working = None, True
        try:
            while self.waiting and self.free_at <= now:
                self.free_at += heapq.heappop(self.waiting)[2]() / self.rate
        finally:
            self.working = False
            self._go_on()

    async def turn(self, cost: int, rank: int, gave_up: Callable[[], bool]) -> bool:
        """Wait until this may go on. Whoever gave up meanwhile costs nothing: False."""
        turn = self.loop.create_future()

        def go_on() -> int:
            if turn.done():  # nobody waits any more
                return 0
            turn.set_result(not (gone := gave_up()))
            return 0 if gone else cost

        self.add((rank,), go_on)
        return await turn


class Starts:
    """Requests that come at once are begun a few in each iteration of the loop: in between others
    are accepted and read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.begun = loop, 0
        self.waiting: deque[Callable[[], None]] = deque()

    def add(self, begin: Callable[[], None]) -> None:
        self.waiting.append(begin)
        self._begin()

    def _begin(self) -> None:
        while self.waiting and self.begun < STARTS:
            if not self.begun:
                self.loop.call_soon(self._next)
            self.begun += 1
            self.waiting.popleft()()

    def _next(self) -> None:
        self.begun = 0
        self._begin()


_paces: WeakKeyDictionary[Any, dict[str, Pace]] = WeakKeyDictionary()
_starts: WeakKeyDictionary[Any, Starts] = WeakKeyDictionary()


def pace_of(loop: asyncio.AbstractEventLoop, kind: str) -> Pace:
    paces = _paces.setdefault(loop, {})
    if kind not in paces:
        paces[kind] = Pace(loop, RATES[kind])
    return paces[kind]


def starts_of(loop: asyncio.AbstractEventLoop) -> Starts:
    return _starts.setdefault(loop, Starts(loop))
