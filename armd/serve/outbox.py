"""Events on their way from the engine's thread: those of a fast model travel together."""

import time
from collections.abc import Callable
from contextlib import suppress

from .events import Callback, Event

FLUSH_INTERVAL = 0.002
"""Seconds that drawn tokens may wait, so that those of a fast model travel together. The first of a
text, and its end, go at once; nothing waits for an exclusive call or a prompt."""
Deliver = Callable[[list[tuple[Callback, Event]]], object]


class Outbox:
    """`deliver` takes the events of one step or several, as (callback, event) pairs, in the
    engine's thread."""

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.waiting: list[tuple[Callback, Event]] = []
        self.at_once, self.last = False, 0.0

    def put(self, callback: Callback, event: Event, *, at_once: bool) -> None:
        self.waiting.append((callback, event))
        self.at_once |= at_once

    def seconds_left(self) -> float:
        return self.last + FLUSH_INTERVAL - time.monotonic()

    def flush_if_due(self) -> None:
        if self.at_once or self.seconds_left() <= 0:
            self.flush()

    def flush(self) -> None:
        events, self.waiting, self.at_once, self.last = self.waiting, [], False, time.monotonic()
        if events:
            with suppress(RuntimeError):  # the server's event loop has closed
                self.deliver(events)


def call(events: list[tuple[Callback, Event]]) -> None:
    for callback, event in events:
        callback(event)
