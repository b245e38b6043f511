"""Bodies in chunks: of any size they are read, and very small ones keep nobody else waiting."""

import json
import socket
import time
from contextlib import suppress

import httpx
import pytest
from serving import running, sent_until_nobody_reads
from test_serve_connections import answer, ask, opened

from armd.serve import connections
from armd.serve.connections import LimitedProtocol
from armd.serve.http_parser import has_many_chunks
from armd.serve.pace import pace_of


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


CHUNKED = b"POST /v1/tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED += b"transfer-encoding: chunked\r\n"


def chunks(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 65, 512, 60_000])
@pytest.mark.parametrize("packet", [100, 5000, 1 << 20])
def test_a_body_may_come_in_chunks_of_any_size(server, size: int, packet: int) -> None:
    """And in packets of any size."""
    body = json.dumps({"text": "a" * 200}).encode() + b" " * 20_000
    sent = chunks(body, size)
    with opened(server) as line:
        line.sendall(CHUNKED + b"\r\n")
        for at in range(0, len(sent), packet):
            line.sendall(sent[at : at + packet])
        line.sendall(CHUNKED + b"connection: close\r\n\r\n" + sent)
        found = answer(line).split(b"HTTP/1.1 ")[1:]
    assert [one[:3] for one in found] == [b"200", b"200"]
    assert all(one.count(b"97") == 200 for one in found)


EARLIER = [b"", b"content-length: 2\r\n\r\n{}", b"\r\n"]


@pytest.mark.parametrize("before", EARLIER, ids=["alone", "behind a body", "behind a head"])
@pytest.mark.parametrize("apart", [0, 1, 3, 4])
def test_very_small_chunks_are_read_slowly(server, monkeypatch, before: bytes, apart: int) -> None:
    """Each costs as much as hundreds of bytes. They keep their connection waiting, and no other.
    Also behind another request, or where the end of their head comes apart from it."""
    parsed: list[bytes] = []
    monkeypatch.setattr(LimitedProtocol, "on_body", lambda self, body: parsed.append(body))
    pace = pace_of(server.service.loop, "chunks")
    monkeypatch.setattr(pace, "rate", 1)
    with opened(server) as line:
        many = chunks(b" " * 20_000, 1)[:-5]
        earlier = CHUNKED.split(b"transfer")[0] + before if before else b""
        whole = earlier + CHUNKED + b"\r\n"
        line.sendall(whole[: len(whole) - apart])
        time.sleep(0.1 if apart else 0)
        line.sendall(whole[len(whole) - apart :] + many)
        assert sent_until_nobody_reads(line, many) < 1 << 26
        assert ask(server) == 200 and len(parsed) < 1000
        monkeypatch.undo()
        monkeypatch.setattr(pace, "rate", 1)
        text, head = b'{"text": "a"}' + b"\r\n" * 5000, {"content-type": "application/json"}
        assert httpx.post(server.url + "/v1/tokenize", content=text, headers=head).is_success
        for mine in list(server.server.server_state.connections):  # it would wait for an hour
            if mine.client == line.getsockname():
                server.service.loop.call_soon_threadsafe(mine.hang_up)
    pace.free_at = 0.0
    server.service.loop.call_soon_threadsafe(pace.timer.cancel)
    server.service.loop.call_soon_threadsafe(setattr, pace, "timer", None)
    server.at_rest()


def test_what_stands_behind_a_body_is_no_header(server) -> None:
    """Such as a key, or a Host that is let in."""
    head = b"POST /v1/tokenize HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    head += b"transfer-encoding: chunked\r\n"
    body, host = b'd\r\n{"text": "a"}\r\n0\r\n', b"host: localhost\r\n"
    for before, behind, come_in in ((host, b"", True), (b"", b"", False), (b"", host, False)):
        with opened(server) as line:
            line.sendall(head + before + b"\r\n" + body + behind + b"\r\n")
            assert (answer(line).split(b" ", 2)[1] == b"200") is come_in


@pytest.mark.parametrize("more", [b"0" * 60_000, b"1;" + b"a" * 60_000, b"\r\n" * 30_000])
def test_what_is_no_body_and_does_not_end_is_read_slowly(server, monkeypatch, more: bytes) -> None:
    """Zeros before a chunk's size, what a chunk may say besides it, and blank lines before a head:
    nothing else counts them."""
    pace = pace_of(server.service.loop, "reads")
    monkeypatch.setattr(pace, "rate", 1)
    with opened(server) as line:
        line.sendall(b"" if more.isspace() else CHUNKED + b"\r\n")
        assert sent_until_nobody_reads(line, more) < 1 << 26
        assert ask(server) == 200
    server.service.loop.call_soon_threadsafe(pace.timer.cancel)
    server.service.loop.call_soon_threadsafe(setattr, pace, "timer", None)
    pace.free_at = 0.0


def test_what_follows_a_bad_head_costs_nothing(server, monkeypatch) -> None:
    looked: list[int] = []

    def count(data: bytes) -> bool:
        looked.append(len(data))
        return has_many_chunks(data)

    monkeypatch.setattr(connections, "has_many_chunks", count)
    with opened(server) as line, suppress(ConnectionResetError):
        line.sendall(b"\x01\r\n\r\n" * 40_000)
        assert answer(line).startswith(b"HTTP/1.1 400")
    assert ask(server) == 200 and len(looked) < 100


def test_requests_in_a_line_may_be_cut_anywhere(server) -> None:
    """Bodies of many lines and of many chunks, heads, and blank lines before them."""
    text, post = b'{"text": "a"}', CHUNKED.split(b"transfer")[0]
    lines = text + b"\r\n" * 300
    with_length = post + b"content-length: %d\r\n\r\n%b" % (len(lines), lines)
    get = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
    whole = b"\r\n\r\n" + with_length + get + b"\r\n" + CHUNKED + b"\r\n"
    whole += chunks(text + b" " * 200, 1) + with_length + get + b"connection: close\r\n\r\n"
    for cut in range(0, len(whole), 23):
        with opened(server) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.sendall(whole[:cut])
            time.sleep(0.001)
            line.sendall(whole[cut:])
            found = answer(line).split(b"HTTP/1.1 ")[1:]
        assert [one[:3] for one in found] == [b"200"] * 5, cut
