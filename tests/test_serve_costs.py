"""What costs a client little costs the server little: texts to be encoded, answers that are
not read, scores of prompts."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable

import httpx
import pytest
from patience import PATIENCE
from serving import running, sent_until_nobody_reads
from test_serve_chunks import CHUNKED
from test_serve_connections import OFFERS, answer, ask, opened

from armd.serve import connections, side_work
from armd.serve.connections import LimitedProtocol
from armd.serve.detokenizer import ServerTokenizer
from armd.serve.pace import pace_of
from armd.serve.security import SecurityMiddleware


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


@pytest.mark.parametrize("requests", [1, 2, 9])
def test_for_who_has_left_nothing_is_worked_out(server, monkeypatch, requests: int) -> None:
    """Also where the loop learns of it later than of the request. And nothing stays open."""
    asked: list[object] = []
    monkeypatch.setattr(ServerTokenizer, "encode", lambda *given: asked.append(given) or [1])
    busy, go_on = threading.Event(), threading.Event()
    server.service.loop.call_soon_threadsafe(lambda: (busy.set(), go_on.wait(PATIENCE)))
    assert busy.wait(PATIENCE)
    body = b'{"text": "abc"}'
    head = CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: %d" % len(body))
    for _ in range(20):
        with opened(server) as line:
            line.sendall((head + b"\r\n" + body) * requests)
    go_on.set()
    assert ask(server) == 200
    server.at_rest()
    assert not asked
    wait_until(lambda: not server.server.server_state.connections)


def test_a_body_that_waits_for_an_earlier_answer_has_its_time_later(server, monkeypatch) -> None:
    """It is not read before."""
    answer_now = SecurityMiddleware._answer

    async def answer_late(*given) -> None:
        await asyncio.sleep(1)
        await answer_now(*given)

    monkeypatch.setattr(SecurityMiddleware, "_answer", answer_late)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.2)
    body = b'{"text": "abc"}'
    head = CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: %d" % len(body))
    with opened(server) as line:
        line.sendall(head + b"\r\n" + body + head + b"connection: close\r\n\r\n")
        time.sleep(0.1)
        line.sendall(body)
        assert answer(line).count(b"HTTP/1.1 200") == 2


def test_a_body_that_nobody_needs_is_read_slowly(server, monkeypatch) -> None:
    """The request was answered without it. It keeps its connection waiting, and no other."""
    pace = pace_of(server.service.loop, "unused")
    monkeypatch.setattr(pace, "rate", 1)
    with opened(server) as line:
        line.sendall(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n"
        )
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
        assert sent_until_nobody_reads(line, b"x" * 65536) < 1 << 26
        assert ask(server) == 200
    pace.free_at = 0.0
    server.at_rest()


def test_many_offers_at_once_are_refused(server) -> None:
    """Each is parsed twice, so that a line of them would cost others their time."""
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + OFFERS[0].encode() + b"\r\n"
    for count, status in ((3, b"200"), (15, b"400")):
        with opened(server) as line:
            line.sendall(head * count + b"GET / HTTP/1.0\r\nhost: localhost\r\n\r\n")
            assert answer(line).split(b"HTTP/1.1 ")[-1][:3] == status


def small_buffers(server, line: socket.socket) -> LimitedProtocol:
    """The server's end of a connection, whose kernel's buffers do not hold megabytes any more."""
    begin = time.monotonic()
    while time.monotonic() < begin + PATIENCE:
        for mine in list(server.server.server_state.connections):
            if mine.client == line.getsockname():
                number = os.dup(mine.transport.get_extra_info("socket").fileno())
                with socket.socket(fileno=number) as theirs:
                    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                return mine
        time.sleep(0.01)
    raise AssertionError("the server has no such connection")


def wait_until(holds: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() < begin + PATIENCE
        time.sleep(0.01)


def long_answer(more: bytes = b"") -> bytes:
    asked = {"prompt": [97] * 60, "max_tokens": 0, "echo": True, "n": 64}
    body = json.dumps(asked).encode()
    post = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return post + more + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def test_an_answer_that_nobody_reads_has_its_time(server, monkeypatch) -> None:
    """Also the last one of a connection, which closes as soon as it is read."""
    monkeypatch.setattr(connections, "READING_SECONDS", 0.5)
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        end = small_buffers(server, line)
        line.sendall(long_answer() * 14 + long_answer(b"connection: close\r\n"))
        wait_until(lambda: end.paused)
        wait_until(lambda: end not in server.server.server_state.connections)


def test_answers_that_wait_to_be_read_have_a_bounded_sum(server, monkeypatch) -> None:
    """Who has not read for the longest time is hung up on first."""
    post = long_answer()
    monkeypatch.setattr(connections, "MOST_UNREAD", 200_000)
    lines, ends = [], []
    try:
        for _ in range(5):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect(("127.0.0.1", server.port))
            lines.append(line)
            ends.append(small_buffers(server, line))
            line.sendall(post * 15)
            wait_until(lambda end=ends[-1]: end.paused or end.transport.is_closing())
        wait_until(ends[0].transport.is_closing)
        left = [end for end in ends if end.paused]
        assert left and left == ends[-len(left) :]  # the last ones
        # of the answer that was being sent when a connection was counted, more may have come
        waits = sum(end.transport.get_write_buffer_size() for end in left)
        assert waits <= 200_000 + 10_000 * len(left) < 250_000
        assert ask(server) == 200
    finally:
        for line in lines:
            line.close()


def test_a_text_is_encoded_where_the_queue_has_room(server, monkeypatch) -> None:
    """Encoding takes time of all cores, and what is asked for without end must have one."""
    url, body = server.url + "/v1/tokenize", {"text": "abc"}
    assert httpx.post(url, json=body).json()["tokens"] == [97, 98, 99]
    monkeypatch.setattr(server.service, "coming", 1000)
    found = httpx.post(url, json=body)
    assert found.status_code == 429 and "retry-after" in found.headers
    monkeypatch.setattr(server.service, "coming", 0)
    assert httpx.post(url, json=body).status_code == 200


def test_all_scores_of_a_request_have_one_deadline(monkeypatch) -> None:
    """Not one after the other the time of a whole request."""
    with running(timeout=1000.0) as server:
        given, score = [], server.service.score

        async def noted(*words, deadline: float, **options):
            given.append(deadline)
            return await score(*words, deadline=deadline, **options)

        monkeypatch.setattr(server.service, "score", noted)
        begin = time.monotonic()
        body = {"prompt": [[97], [98], [99]], "max_tokens": 1, "echo": True, "logprobs": 0}
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=60).status_code == 200
        assert len(given) == 3 and len(set(given)) == 1
        assert begin < given[0] - 1000.0 < time.monotonic()


def test_short_texts_do_not_wait_for_long_ones(server, monkeypatch) -> None:
    """However many long ones are being encoded."""
    begun, free = threading.Event(), threading.Event()
    encode = server.service.tokenizer.encode

    def slow(text: str, param: str) -> list[int]:
        if len(text) > side_work.INLINE:
            begun.set()
            assert free.wait(PATIENCE)
            text = "a"
        return encode(text, param)

    monkeypatch.setattr(server.service.tokenizer, "encode", slow)
    monkeypatch.setattr(server.service.tokenizer, "check_length", lambda *_: None)
    url, long = server.url + "/v1/tokenize", {"text": "a" * (side_work.INLINE + 1)}
    asking = [
        threading.Thread(target=httpx.post, args=(url,), kwargs={"json": long}) for _ in "abcdefgh"
    ]
    try:
        for thread in asking:
            thread.start()
        assert begun.wait(PATIENCE)
        assert httpx.post(url, json={"text": "ab"}).json()["tokens"] == [97, 98]
    finally:
        free.set()
        for thread in asking:
            thread.join(PATIENCE)


def test_newcomers_do_not_wait_for_the_loop_one_by_one(server) -> None:
    """An iteration of the loop is as long as what all others ask for in it."""
    loop, ticks, over = server.service.loop, [0], threading.Event()

    def tick() -> None:
        ticks[0] += 1
        time.sleep(0.002)
        if not over.is_set():
            loop.call_soon(tick)

    loop.call_soon_threadsafe(tick)
    try:
        lines = [opened(server) for _ in range(128)]
        before = ticks[0]
        for line in lines:
            line.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for line in lines:
            assert line.recv(15) == b"HTTP/1.1 200 OK"
        assert ticks[0] - before < 64
    finally:
        over.set()
        for line in lines:
            line.close()
