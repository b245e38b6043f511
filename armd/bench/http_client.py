"""A small client of the server, for measuring it: nothing but the standard library, so that it
costs the machine little and starts at once."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """One request on a connection of its own."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.status, self.headers = 0, {}
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def send(self, path: str, body: Any = None) -> "Line":
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\n"
            f"Host: {self.address[0]}:{self.address[1]}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self.writer.write(head.encode() + content)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        pairs = (line.partition(": ") for line in lines[1:] if line)
        self.headers = {name.lower(): value for name, _, value in pairs}
        return self

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readline()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def ask(address: tuple[str, int], path: str, body: Any = None) -> Answer:
    """The whole answer."""
    line = await Line(address).send(path, body)
    try:
        content = b"".join([part async for part in line.parts()])
    finally:
        await line.close()
    return Answer(line.status, line.headers, content)


async def listen(
    address: tuple[str, int], path: str, body: Any
) -> AsyncIterator[tuple[float, Any]]:
    """The events of a streamed answer, each with the seconds since the request was sent."""
    start = time.perf_counter()
    line = await Line(address).send(path, body)
    try:
        if line.status != 200:
            raise ConnectionError(f"status {line.status}")
        left = b""
        async for part in line.parts():
            *events, left = (left + part).split(b"\n\n")
            for event in events:
                content = event.removeprefix(b"data: ")
                known = content == b"[DONE]"
                yield time.perf_counter() - start, None if known else json.loads(content)
    finally:
        await line.close()


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
