"""Large bodies of all clients together are read at a bounded rate: hundreds of them at a time would
block the event loop."""

import asyncio
import heapq
from asyncio import sleep
from collections.abc import Callable
from itertools import count

from .chunk_pace import CREDIT

SMALL_BODY = 1 << 16
LARGE_RATE = 16 << 20
"""Bytes of larger bodies that are read in a second."""


class BodyPace:
    """Of one event loop. One part is read after the other, first those of the bodies of which the
    least was read: the largest wait."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self.number, self.reading, self.free_at = count(), False, 0.0

    async def turn(self, part: int, read: int, gave_up: Callable[[], bool]) -> bool:
        """Wait until a part of a body, of which so much is read, has had its time; meanwhile the
        client is not read. A client that has left takes no time: False."""
        if self.reading:
            await self._turn_of_its_own(read)
        self.reading = True
        try:
            if gave_up():
                return False
            now = asyncio.get_running_loop().time()
            self.free_at = max(self.free_at, now - CREDIT) + part / LARGE_RATE
            await sleep(max(0.0, self.free_at - now))
            return True
        finally:
            self._go_on()

    async def _turn_of_its_own(self, read: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self.waiting, (read, next(self.number), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had come
                self._go_on()
            raise

    def _go_on(self) -> None:
        self.reading = False
        while self.waiting and not self.reading:
            turn = heapq.heappop(self.waiting)[2]
            if not turn.done():  # its time is not over
                turn.set_result(None)
                self.reading = True
