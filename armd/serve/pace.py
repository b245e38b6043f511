"""What costs the event loop much is done at bounded rates, of all clients together, so that others
need not wait for it."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

RATES = {
    "chunks": 50_000,  # of very small chunks: each costs as much as hundreds of bytes
    "reads": 64 << 20,  # of bytes of requests beyond their first megabyte
    "bodies": 16 << 20,  # of bytes of large bodies that are read for their requests
    "unused": 16 << 20,  # of bytes of bodies that go on when their requests are answered
}
"""A second."""
STARTS = 64
"""Requests that are begun in an iteration of the loop."""
CREDIT = 0.05
"""Seconds that an iteration of the loop may catch up with: under load they are long."""


class Pace:
    """Of one event loop. Work of the lowest rank comes first, and every second time the oldest of
    the same first number, so that none waits for ever. It says what it has cost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float) -> None:
        self.loop, self.rate, self.number = loop, rate, count()
        self.waiting: list[tuple[tuple[int, ...], int, Callable[[], int], Callable[[], bool]]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.free_at, self.working, self.oldest_next = 0.0, False, False

    def add(self, rank: tuple[int, ...], work: Callable[[], int], over: Callable[[], bool]) -> None:
        """`over`: whether nobody needs this work any more."""
        self.waiting.append((rank, next(self.number), work, over))
        self._go_on()

    def _take(self) -> Callable[[], int]:
        oldest, self.oldest_next = self.oldest_next, not self.oldest_next
        if oldest:
            taken = min(self.waiting, key=lambda one: (one[0][0], one[1]))
        else:
            taken = min(self.waiting, key=lambda one: one[:2])
        self.waiting.remove(taken)
        return taken[2]

    def _go_on(self) -> None:
        if self.timer is None and self.waiting and not self.working:
            wait = max(0.0, self.free_at - self.loop.time())
            self.timer = self.loop.call_later(wait, self._work)

    def _work(self) -> None:
        now = self.loop.time()
        self.free_at = max(self.free_at, now - CREDIT)
        self.waiting = [one for one in self.waiting if not one[3]()]
        self.timer, self.working = None, True
        try:
            while self.waiting and self.free_at <= now:
                self.free_at += self._take()() / self.rate
        finally:
            self.working = False
            self._go_on()

    async def turn(self, cost: int, rank: int, gave_up: Callable[[], bool]) -> bool:
        """Wait until this may go on. Whoever gave up meanwhile costs nothing: False."""
        turn = self.loop.create_future()

        def go_on() -> int:
            if turn.done():
                return 0
            turn.set_result(not (gone := gave_up()))
            return 0 if gone else cost

        self.add((0, rank), go_on, turn.done)
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
    if loop not in _starts:
        _starts[loop] = Starts(loop)
    return _starts[loop]
