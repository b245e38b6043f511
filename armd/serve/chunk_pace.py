"""Very small chunks of bodies are parsed at a bounded rate: each costs the server as much as
hundreds of bytes do."""

import asyncio
import heapq
from itertools import count
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

FEW_CHUNKS, CHUNK = 64, 512
"""What comes at once may have so many chunks, and one more for each CHUNK bytes."""
PART, RATE = 1024, 50_000
"""What has more is parsed in parts of so many bytes, at so many chunks a second of all clients
together."""
CREDIT = 0.05
"""Seconds that an iteration of the loop may catch up with: under load they are long."""
END = b"\r\n"
"""Two for each chunk."""


@runtime_checkable
class Paced(Protocol):
    """A connection that holds bytes which are not parsed yet."""

    def rank(self) -> tuple[bool, int]: ...

    def parse_part(self) -> int:
        """How many chunks there were in it."""
        ...


def has_many_chunks(data: bytes) -> bool:
    return data.count(END) > 2 * (FEW_CHUNKS + len(data) // CHUNK)


class ChunkPace:
    """Of one event loop. The connection of the lowest rank comes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.number = loop, count()
        self.waiting: list[tuple[tuple[bool, int], int, Paced]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.free_at, self.parsing = 0.0, False

    def add(self, one: Paced) -> None:
        heapq.heappush(self.waiting, (one.rank(), next(self.number), one))
        self._go_on()

    def _go_on(self) -> None:
        if self.timer is None and self.waiting and not self.parsing:
            wait = max(0.0, self.free_at - self.loop.time())
            self.timer = self.loop.call_later(wait, self._parse_parts)

    def _parse_parts(self) -> None:
        now = self.loop.time()
        self.free_at = max(self.free_at, now - CREDIT)
        self.timer, self.parsing = None, True
        try:
            while self.waiting and self.free_at <= now:
                self.free_at += heapq.heappop(self.waiting)[2].parse_part() / RATE
        finally:
            self.parsing = False
            self._go_on()


_paces: WeakKeyDictionary[Any, ChunkPace] = WeakKeyDictionary()


def pace_of(loop: asyncio.AbstractEventLoop) -> ChunkPace:
    return _paces.setdefault(loop, ChunkPace(loop))
