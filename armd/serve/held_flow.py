"""What a connection's bytes wait for: flow control where they are parsed in turns, and whether the
client is still there."""

import select
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class HeldFlow(FlowControl):
    """Flow control of a connection that may hold bytes which are not parsed yet: no more are read
    meanwhile, whoever asks for them."""

    holds = False

    def hold(self) -> None:
        self.holds = True
        self.pause_reading()

    def let_go(self) -> None:
        self.holds = False
        if not self._transport.is_closing():
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self.holds:
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
