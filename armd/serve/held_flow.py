"""What a connection's bytes wait for: flow control where they are parsed in turns, and whether the
client is still there."""

import select
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class HeldFlow(FlowControl):
    """Flow control of a connection that is read while neither uvicorn nor anybody else holds it."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.held_by: set[str] = set()

    def hold(self, why: str) -> None:
        self.held_by.add(why)
        self._read_or_not()

    def let_go(self, why: str) -> None:
        self.held_by.discard(why)
        self._read_or_not()

    def pause_reading(self) -> None:
        self.hold("uvicorn")

    def resume_reading(self) -> None:
        self.let_go("uvicorn")

    def _read_or_not(self) -> None:
        if self._transport.is_closing() or self.read_paused == bool(self.held_by):
            return
        if self.held_by:
            super().pause_reading()
        else:
            super().resume_reading()


def has_left(transport: Any) -> bool:
    """Whether the client has ended its side, as the kernel knows it (Linux; elsewhere False). Those
    that connect and leave again lie in the listening socket's queue, with all they have sent."""
    ended, opened = getattr(select, "POLLRDHUP", 0), transport.get_extra_info("socket")
    if transport.is_closing() or not ended or opened is None or opened.fileno() < 0:
        return transport.is_closing()
    poll = select.poll()
    poll.register(opened.fileno(), ended)
    return bool(poll.poll(0))
