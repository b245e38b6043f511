"""What a connection may take before its request is known: the size, the number and the time of its
headers, and how many connections there are. uvicorn has no limits of these kinds."""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADERS, MOST_HEAD, MOST_URL = 100, 32 << 10, 8 << 10
"""Header lines of a request; bytes of its head; bytes of its URL."""
HEAD_SECONDS = 10.0
MOST_CONNECTIONS = 1000
OTHER_FILES = 64
"""Files that the process needs besides connections."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b'connection: close\r\n\r\n{"error": {"message": "too many connections; try again", '
    b'"type": "overloaded", "param": null, "code": "busy"}}'
)


def most_connections() -> int:
    """As many as there may be open files, less what the process needs itself."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, min(MOST_CONNECTIONS, files - OTHER_FILES))


class LimitedProtocol(HttpToolsProtocol):
    """A connection whose heads are bounded in size and in time. Where there are too many, the one
    that has owed its head for the longest time is closed, so that nobody is kept out by
    connections that say nothing."""

    limit = most_connections()

    def connection_made(self, transport: Any) -> None:  # uvloop has types of its own
        super().connection_made(transport)
        self.in_head, self.head, self.completed = True, 0, False
        self.timer: asyncio.TimerHandle | None = None
        self._expect_head()
        if len(self.connections) > self.limit and not self._close_oldest():
            transport.write(FULL)
            transport.close()

    def _close_oldest(self) -> bool:
        """Close the connection, besides this one, that has owed its head the longest."""
        owing = [c for c in self.connections if c is not self and getattr(c, "timer", None)]
        if not owing:
            return False
        oldest: Any = min(owing, key=lambda c: c.timer.when())  # type: ignore[union-attr]
        oldest.forget_timer()
        oldest.transport.abort()
        self.connections.discard(oldest)
        return True

    def _expect_head(self) -> None:
        if self.timer is None:
            self.timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def forget_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _late(self) -> None:
        self.timer = None
        if self.in_head and not self.transport.is_closing():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.in_head:
            self._expect_head()
        self.completed = False
        super().data_received(data)
        # where a message ended in these data, they were its body, too
        if self.in_head and not self.completed and not self.transport.is_closing():
            self.head += len(data)
            if self.head > MOST_HEAD:
                self.send_400_response("The head of the request is too large.")

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > MOST_URL:
            raise ValueError("the URL is too long")  # the parser stops, and the answer is 400
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head += len(name) + len(value)
        if len(self.headers) >= MOST_HEADERS or self.head > MOST_HEAD:
            raise ValueError("there are too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.in_head, self.head = False, 0
        self.forget_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.in_head, self.head, self.completed = True, 0, True
