"""Limits of connections that uvicorn does not have: size, number and time of headers, time of a
body and of reading the answer, pipelined requests, and the number of connections."""

import asyncio
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import FULL
from .held_flow import HeldFlow, has_left
from .http_parser import END, HttpParser, has_many_chunks
from .pace import pace_of, starts_of
from .security import GAVE_UP

MOST_HEADERS, MOST_HEAD, MOST_URL = 100, 32 << 10, 8 << 10
"""Header lines of a request; bytes of its head; bytes of its URL."""
MOST_WAITING = 16
"""Requests that a connection may send before the first of them is answered."""
HEAD_SECONDS, BODY_SECONDS, READING_SECONDS = 10.0, 30.0, 60.0
"""Timeouts: sending a head; sending a body, also one that is not read; reading our answer."""
MOST_OFFERS = 4
"""Heads that offer another protocol, in what comes at once: each is parsed twice."""
MUCH, PATIENCE = 1 << 16, 1 << 20
"""After so many bytes at once others are read first; after so many, a request waits its turn."""
PART = 1024
"""Bytes of a body of very many chunks that are parsed at once."""
MOST_UNREAD = 1 << 28
"""Bytes of answers, of all clients together, that wait to be read."""
MOST_CONNECTIONS, OTHER_FILES = 1000, 96
"""And files that the process needs besides."""


def most_connections(asked: int = MOST_CONNECTIONS) -> int:
    """So many, or as many as there may be open files, less what the process needs itself."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, min(asked, files - OTHER_FILES))


class LimitedProtocol(HttpToolsProtocol):
    """A connection whose requests are bounded in size, number and time. Where there are too many,
    the one that has been idle the longest is closed, so that idle, slow or unread connections lock
    no client out."""

    limit = most_connections()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser: Any = HttpParser(self)

    def connection_made(self, transport: Any) -> None:  # uvloop has types of its own
        super().connection_made(transport)
        self.flow = self.reading = HeldFlow(transport)
        self.held, self.chunked, self.chunks, self.body_left = bytearray(), False, 0, 0
        self.in_head, self.head, self.fields, self.completed = True, 0, 0, False
        self.begun, self.tail, self.read = False, b"", 0
        self.timer: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None
        self.answered: Any = None
        self.offers = 0
        self.idle_since = self.loop.time()
        self._expect(HEAD_SECONDS)
        if len(self.connections) > self.limit and not self._close_idlest():
            transport.write(FULL)
            transport.close()

    @property
    def useful(self) -> bool:
        """Whether a request came whole, and its answer is being made and read."""
        answering = self.cycle is not None and not self.cycle.response_complete
        closing = self.transport.is_closing()
        return answering and self.in_head and not self.flow.write_paused and not closing

    def _close_idlest(self) -> bool:
        """Close the connection, besides this one, that has been idle the longest."""
        idle = [c for c in self.connections if c is not self and not getattr(c, "useful", True)]
        if not idle:
            return False
        idlest: Any = min(idle, key=lambda c: c.idle_since)  # type: ignore[union-attr]
        self.connections.discard(idlest)
        idlest.hang_up()
        return True

    def _expect(self, seconds: float) -> None:
        """The rest of a head or of a body is to come within this time."""
        if self.timer is None:
            self.timer = self.loop.call_later(seconds, self._late)

    def _forget_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _late(self) -> None:
        self.timer = None
        if self.useful or self.pipeline:  # an empty line behind a request is no head that is owed
            self._expect(HEAD_SECONDS if self.in_head else BODY_SECONDS)
        else:
            self.hang_up()

    def hang_up(self) -> None:
        self._forget_timer()
        self.transport.abort()  # also one that closes as soon as its answer is read

    def pause_writing(self) -> None:
        super().pause_writing()
        self.idle_since = self.loop.time()
        self.unread = self.loop.call_later(READING_SECONDS, self.hang_up)
        self._limit_unread()

    def _limit_unread(self) -> None:
        """Hang up on those that have not read the longest, where too much waits to be read."""
        slow = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.paused]
        waits = sum(c.transport.get_write_buffer_size() for c in slow)
        for one in sorted(slow, key=lambda c: c.idle_since):
            if waits <= MOST_UNREAD:
                break
            waits -= one.transport.get_write_buffer_size()
            self.loop.call_soon(one.hang_up)  # it may be in the middle of a write

    @property
    def paused(self) -> bool:
        return self.flow.write_paused

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.answered = cycle
        cycle.scope["extensions"] = {GAVE_UP: partial(self._gave_up, cycle)}
        starts_of(self.loop).add(partial(self._begin, cycle, app))

    def _begin(self, cycle: Any, app: Any) -> None:
        if cycle.scope["method"] == "POST":
            self._gave_up(cycle)
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, app)

    def _gave_up(self, cycle: Any) -> bool:
        """Whether the client has left, so that nothing is worked out for it. uvicorn sees it later,
        when the work is done, or never: with more requests behind this one nothing is read."""
        if not cycle.disconnected and has_left(self.transport):
            cycle.disconnected = True
            cycle.message_event.set()
            self.loop.call_soon(self.transport.close)
        return cycle.disconnected

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        if self.unread is not None:
            self.unread.cancel()
        self.pipeline.clear()
        self.held.clear()
        if self.answered is not None:  # uvicorn tells the request that came last, not this one
            self.answered.disconnected = True
            self.answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if len(data) >= MUCH:  # the loop would go on with this connection as long as more comes
            self._wait("reads", len(data))
        if not self.held and (data := self._parse_cheap(data)):
            self._wait_for_chunks()
        if data:
            self.held += data
            self.reading.hold("chunks")

    def _wait(self, kind: str, count: int) -> None:
        """Read on when so many bytes may have their time. Those come first of whom the least was
        read, as answers go."""
        self.read += count
        self.reading.hold(kind)
        if kind == "reads" and self.read <= PATIENCE:
            self.loop.call_soon(self.reading.let_go, kind)
        else:
            self._add(kind, (0, self.read), partial(self._read_on, kind, count))

    def _add(self, kind: str, rank: tuple[int, int], work: Callable[[], int]) -> None:
        pace_of(self.loop, kind).add(rank, work, self.transport.is_closing)

    def _read_on(self, kind: str, count: int) -> int:
        if kind == "reads" and has_left(self.transport):
            self.transport.close()
        self.reading.let_go(kind)
        return 0 if self.transport.is_closing() else count

    def _wait_for_chunks(self) -> None:
        """Bodies that nobody needs come last, and those that had the fewest chunks first."""
        unused = self.cycle is not None and self.cycle.response_complete
        self._add("chunks", (int(unused), self.chunks), self.parse_part)

    def _parse_cheap(self, data: bytes) -> bytes:
        """Parse all but a body of very many chunks; that is returned."""
        while has_many_chunks(data):  # or many lines in heads, or in the text of a body
            if self.transport.is_closing():
                return b""
            if not self.in_head and self.chunked:
                return data
            end = self.body_left  # by itself: the next one's may be such chunks
            if self.in_head:  # by itself: what its body is, is known then
                data = data if self.begun else data.lstrip(END)
                before = self.tail if self.begun else b""
                at = (before + data).find(2 * END)
                end = at + len(2 * END) - len(before) if at >= 0 else 0
            self._parse(data[: end or None])
            data = data[end:] if end else b""
        if data:
            self._parse(data)
        return b""

    def parse_part(self) -> int:
        """Of what is held, in its turn."""
        if has_left(self.transport):
            self.hang_up()
            self.held.clear()
        part = bytes(self.held[:PART])
        del self.held[:PART]
        chunks = part.count(END) // 2
        self.chunks += chunks
        self._parse(part)
        if self.transport.is_closing():
            self.held.clear()
        if self.held:
            self._wait_for_chunks()
        else:
            self.reading.let_go("chunks")
        return chunks

    def _parse(self, data: bytes) -> None:
        if self.transport.is_closing() or not data:
            return
        if self.in_head:
            self._expect(HEAD_SECONDS)
        self.completed, self.offers, self.tail = False, MOST_OFFERS, (self.tail + data)[-3:]
        super().data_received(data)
        # where a message ended in these data, they were its body, too
        if self.transport.is_closing():
            return
        if not self.in_head and self.cycle is not None and self.cycle.response_complete:
            self._wait("unused", len(data))  # cut off at once, it might not see its answer
        if self.in_head and not self.completed:
            self.head += len(data)
            if self.head > MOST_HEAD:
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self.begun = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > MOST_URL:
            raise ValueError("the URL is too long")  # the parser stops, and the answer is 400
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields += len(name) + len(value)  # self.head has them when more is to come
        if len(self.headers) >= MOST_HEADERS or self.fields > MOST_HEAD:
            raise ValueError("there are too many headers")
        if self.in_head:  # those behind a body say nothing of the request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self.offers -= 1
            if self.offers < 0:
                raise ValueError("too many offers of another protocol")
            self.fields = 0  # the head comes again, without the offer
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("this is no proxy")
            return
        self.in_head, self.head, self.fields, self.idle_since = False, 0, 0, self.loop.time()
        self.chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        lengths = [value for name, value in self.headers if name == b"content-length"]
        self.body_left = int(lengths[0]) if lengths else 0
        self._forget_timer()
        self._expect(BODY_SECONDS)
        if len(self.pipeline) >= MOST_WAITING:
            raise ValueError("too many requests wait for their answers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._forget_timer()
        super().on_message_complete()
        self.in_head, self.head, self.fields, self.completed = True, 0, 0, True
        self.begun = False

    def on_response_complete(self) -> None:
        self.idle_since, self.read = self.loop.time(), 0
        super().on_response_complete()
