"""A client that measures the server: nothing but the standard library, so that it costs the machine
little and starts at once."""

import asyncio
import json
import time
from typing import Any

END = b"\r\n0\r\n\r\n"
"""Of a chunked answer."""


class Recorder(asyncio.Protocol):
    """An open connection on which streamed answers are asked for, one after the other. What comes
    is kept with its time and read when all is there: reading takes the machine from the server."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.parts: list[tuple[float, bytes]] = []
        self.tail, self.over = b"", asyncio.get_running_loop().create_future()
        self.asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.asked and not self.over.done():
            self.over.set_exception(exc or ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        if self.over.done():  # the rest of a refusal
            return
        if not self.parts and not data.startswith(b"HTTP/1.1 200"):
            self.over.set_exception(ConnectionError(f"the server says {data.decode()[:500]}"))
            return
        self.parts.append((time.perf_counter(), data))
        self.tail = (self.tail + data)[-len(END) :]
        if self.tail == END or (not self.chunked and self._whole()):
            self.over.set_result(None)

    @property
    def chunked(self) -> bool:
        return b"chunked" in self.parts[0][1].partition(b"\r\n\r\n")[0].lower()

    def _whole(self) -> bool:
        """An answer that says its length is there."""
        head, _, body = b"".join(data for _, data in self.parts).partition(b"\r\n\r\n")
        return len(body) >= int(head.lower().partition(b"content-length:")[2].split()[0])

    async def listen(self, path: str, body: Any) -> list[tuple[float, Any]]:
        """All events, each with the seconds since the request was sent."""
        start = await self.fetch(path, body)
        return [(at - start, event) for at, event in events_of(self.parts)]

    async def fetch(self, path: str, body: Any) -> float:
        """The whole answer, kept but not read; returns when the request was sent."""
        if self.transport.is_closing():
            raise ConnectionError("the server hung up")
        self.parts, self.tail, self.over = [], b"", asyncio.get_running_loop().create_future()
        content = json.dumps(body).encode()
        host = "{}:{}".format(*self.transport.get_extra_info("peername")[:2])
        start, self.asked = time.perf_counter(), True
        self.transport.write(
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        await self.over
        return start


def events_of(parts: list[tuple[float, bytes]]) -> list[tuple[float, Any]]:
    """The events of a chunked answer that came in these parts, each with the time of its end."""
    found: list[tuple[float, Any]] = []
    left, body, head = b"", b"", True
    for at, part in parts:
        left += part
        if head and b"\r\n\r\n" in left:
            left, head = left.partition(b"\r\n\r\n")[2], False
        while not head and b"\r\n" in left:
            size, _, rest = left.partition(b"\r\n")
            if len(rest) < int(size, 16) + 2:
                break
            body, left = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        *events, body = body.split(b"\n\n")
        found += [(at, json.loads(event.removeprefix(b"data: "))) for event in events]
    return found
