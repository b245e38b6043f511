"""Before the body: heads that are too large, too many or too slow cost the others nothing, and
without the key nobody comes in."""

import http.client
import json
import socket
import threading
import time
from base64 import b64encode
from contextlib import suppress

import pytest
from patience import PATIENCE
from serving import running

from armd.serve import connections
from armd.serve.connections import LimitedProtocol


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


def ask(server, path: str = "/health", **headers: str) -> int:
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        line.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        return line.getresponse().status
    finally:
        line.close()


def opened(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def answer(line: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    found = b""
    with suppress(ConnectionResetError):
        while part := line.recv(65536):
            found += part
    return found


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 400_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["URL", "headers", "header", "endless header", "TLS"],
)
def test_a_head_out_of_bounds_is_refused_at_once(server, head: bytes) -> None:
    with opened(server) as line:
        with suppress(OSError):  # the server may hang up before all is sent
            line.sendall(head)
        assert answer(line)[:12] in (b"HTTP/1.1 400", b"")
    assert ask(server) == 200


def test_a_large_head_may_come_in_pieces(server) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += b"".join(b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(29)) + b"\r\n"
    with opened(server) as line:
        for start in range(0, len(head), 4000):
            line.sendall(head[start : start + 4000])
            time.sleep(0.02)
        assert line.recv(64).startswith(b"HTTP/1.1 200")


def test_a_head_that_never_ends_is_hung_up_on(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    with opened(server) as silent, opened(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nhost: loc")
        begin = time.monotonic()
        assert answer(silent) == answer(slow) == b""
        assert time.monotonic() - begin < 10
    # a connection that is kept alive and then begins another head, but slowly
    with opened(server) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
        line.sendall(b"GET /hea")
        assert b"200" not in answer(line)


def test_a_large_body_is_no_large_head(server) -> None:
    """All of it may come at once, behind a short head, and be followed by another request."""
    body = json.dumps({"text": "a" * 60, "x": "b" * 200_000}).encode()
    head = b"POST /v1/tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    whole = head + b"content-length: %d\r\n\r\n" % len(body) + body
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with opened(server) as line:
        line.sendall(whole + last)
        found = answer(line)
    assert b"there is no field 'x'" in found and found.count(b"HTTP/1.1 200") == 1


def test_half_open_connections_keep_nobody_out(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedProtocol, "limit", 10)
    silent = [opened(server) for _ in range(40)]
    try:
        for _ in range(5):
            assert ask(server) == 200
        assert len(server.server.server_state.connections) <= 10
    finally:
        for line in silent:
            line.close()


ENDLESS = b"content-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
USELESS = {
    "body nobody asked for": b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + ENDLESS,
    "body that does not end": b"POST /v1/tokenize HTTP/1.1\r\nhost: localhost\r\n" + ENDLESS,
    "body after a refusal": b"POST /v1/tokenize HTTP/1.1\r\nhost: evil.example\r\n" + ENDLESS,
    "kept alive": GET,
}


@pytest.mark.parametrize("sent", USELESS.values(), ids=USELESS)
def test_connections_of_no_use_keep_nobody_out(server, monkeypatch, sent: bytes) -> None:
    monkeypatch.setattr(LimitedProtocol, "limit", 10)
    idle = []
    try:
        for _ in range(40):
            idle.append(opened(server))
            idle[-1].sendall(sent)
            assert ask(server) == 200
        assert len(server.server.server_state.connections) <= 10
    finally:
        for line in idle:
            line.close()


def test_a_request_that_is_answered_is_of_use(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come after it, and however long its answer takes."""
    monkeypatch.setattr(LimitedProtocol, "limit", 10)
    body = b'{"prompt": "a", "max_tokens": 40}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    engine, begun, free = server.service.engine, threading.Event(), threading.Event()
    engine.run_exclusive(lambda: (begun.set(), free.wait(PATIENCE)))
    assert begun.wait(PATIENCE)  # before that, the request would take a slot and not wait
    with opened(server) as line:
        line.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        while not engine.waiting:
            time.sleep(0.01)
        silent = [opened(server) for _ in range(40)]
        assert ask(server) == 200
        free.set()
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
        for other in silent:
            other.close()


def test_a_body_that_never_ends_is_hung_up_on(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the answer was given without it."""
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.2)
    for sent in USELESS["body nobody asked for"], USELESS["body that does not end"]:
        with opened(server) as line:
            line.sendall(sent)
            answer(line)  # it ends


def test_who_does_not_read_is_hung_up_on(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READING_SECONDS", 0.2)
    with opened(server) as line:
        line.sendall(GET)
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
        (mine,) = server.server.server_state.connections
        # what the loop does where buffers are full; here they hold megabytes
        mine.loop.call_soon_threadsafe(mine.pause_writing)
        answer(line)  # it ends


def test_few_requests_wait_on_one_connection(server) -> None:
    """Each takes memory, before any key is looked at."""
    with opened(server) as line:
        with suppress(OSError):
            line.sendall(GET * 2000)
        found = answer(line)
    assert b"HTTP/1.1 400" in found and found.count(b"HTTP/1.1 200") <= connections.MOST_WAITING + 1
    with opened(server) as line:
        line.sendall(GET * 9 + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert answer(line).count(b"HTTP/1.1 200") == 10


def test_without_the_key_nobody_comes_in() -> None:
    with running(api_key="s3cret") as server:
        basic = b64encode(b"any:s3cret").decode()
        for path in ("/", "/v1/info", "/metrics", "/page/index.html", "/openapi.json"):
            assert ask(server, path) == 401
            for wrong in ("Bearer", "Bearer s3cre", "Bearer s3cret2", "s3cret", "Basic s3cret"):
                assert ask(server, path, Authorization=wrong) == 401
            assert ask(server, path, Authorization="Bearer s3cret") == 200
            assert ask(server, path, Authorization=f"Basic {basic}") == 200
        assert ask(server, "/health") == 200
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        for path in ("/v1/tokenize", "/health"):  # whose bodies would take the others' time
            line.request("POST", path, b"{}", {"Content-Type": "application/json"})
            found = line.getresponse()
            assert found.status == 401 and "key" in json.loads(found.read())["error"]["message"]
        line.close()


@pytest.mark.parametrize("host", ["localhost:", "localhost:x", "localhost@evil", "[::1", "a:b:c"])
def test_the_host_is_read_strictly(server, host: str) -> None:
    assert ask(server, "/v1/info", Host=host) == 403


def test_a_header_that_may_come_once_does_not_come_twice(server) -> None:
    with opened(server) as line:
        twice = b"host: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
        line.sendall(b"GET /v1/info HTTP/1.1\r\n" + twice)
        assert answer(line).startswith(b"HTTP/1.1 400")


def test_an_origin_is_this_server_or_refused(server) -> None:
    own = f"127.0.0.1:{server.port}"
    for origin in (f"http://user@{own}", f"http://{own}/path", f"ftp://{own}", own, "http://"):
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", "Origin": origin}
        line.request("POST", "/v1/tokenize", b'{"text": "a"}', headers)
        assert line.getresponse().status == 403
        line.close()


def test_a_client_that_resets_leaves_no_traceback(server, capfd: pytest.CaptureFixture) -> None:
    body = b'{"prompt": "a", "max_tokens": 50, "stream": true}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    for sent in (head + body, head, head[:40], (head + body) * 9, GET * 16):
        line = opened(server)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        line.sendall(sent)
        line.close()  # with a reset
    server.at_rest()
    assert ask(server) == 200
    assert "Traceback" not in capfd.readouterr().err


OFFERS = [
    "Connection: Upgrade\r\nUpgrade: h2c\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n",
    "Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\n",
    "Upgrade: h2c\r\nConnection: keep-alive\r\nConnection: Upgrade\r\n",
]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("split", [0, 1, 40])
def test_an_offer_of_another_protocol_is_ignored(server, offer: str, split: int) -> None:
    """As Java's HttpClient and curl --http2 send it. The body is the request's own, however it
    comes, and never a request itself."""
    body = json.dumps({"prompt": "a", "max_tokens": 2, "seed": 1}).encode()
    inner = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    found = []
    for more in ("", offer):
        sent = [f"{head}{more}content-length: {len(one)}\r\n\r\n".encode() for one in (body, inner)]
        last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        with opened(server) as line:
            for part, one in zip(sent, (body, inner), strict=True):
                whole = part + one
                cut = len(part) + split - 1 if split else len(whole)
                line.sendall(whole[:cut])
                time.sleep(0.02 if split else 0)
                line.sendall(whole[cut:])
            line.sendall(last)
            found.append(answer(line).split(b"HTTP/1.1 ")[1:])
    plain, offered = ([one[:3] for one in answers] for answers in found)
    assert offered == plain == [b"200", b"400", b"200"]
    texts = [json.loads(answers[0].partition(b"\r\n\r\n")[2])["choices"] for answers in found]
    assert texts[0] == texts[1]


def test_a_connection_to_elsewhere_is_refused(server) -> None:
    with opened(server) as line:
        line.sendall(b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answer(line).startswith(b"HTTP/1.1 400")


def test_health_can_be_asked_for_its_head(server) -> None:
    """As wget --spider and curl -I do."""
    for path in ("/health", "/"):
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        line.request("HEAD", path)
        answered = line.getresponse()
        assert answered.status == 200 and not answered.read()
        line.close()
