"""Many clients at once, a third of whom leave in the middle: every answer is complete and the same
as alone; memory comes back, no slot is stuck. `python -m armd.bench.load` does it for 30 s."""

import asyncio
import gc
import socket
import threading
import time

import pytest
from patience import PATIENCE
from serving import running

from armd.bench.load import Load, put_load


@pytest.fixture(scope="module")
def server():
    with running(slots=4, queue=24) as made:
        yield made


def test_everyone_is_served_as_if_alone(server) -> None:
    job = Load(f"127.0.0.1:{server.port}", clients=40, seconds=5.0, kinds=8, max_tokens=10)
    asyncio.run(put_load(Load(job.url, clients=10, seconds=1.0, kinds=8, max_tokens=10)))  # warm
    gc.collect()
    outcome = asyncio.run(put_load(job))
    assert not outcome.wrong, outcome.wrong[:3]
    assert outcome.finished > 20 and outcome.left > 10
    assert outcome.memory_after - outcome.memory_before < 64 * 2**20
    server.at_rest()
    metrics = server.service.engine.metrics
    assert metrics.failed == 0 and metrics.abandoned > 0
    assert metrics.rows > metrics.passes, "nothing was ever decoded together"


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_frees_the_place_before_the_text_is_done(server, stream: bool) -> None:
    import json

    engine = server.service.engine
    before = engine.metrics.abandoned
    body = json.dumps({"prompt": "x", "max_tokens": 60, "n": 20, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        while not engine.active:
            time.sleep(0.002)
    server.at_rest()
    assert engine.metrics.abandoned > before


def test_a_told_server_finishes_what_it_has_and_takes_nothing_new() -> None:
    """SIGTERM, as uvicorn hears it: texts under way go on within the grace, new ones get a 503."""
    import http.client
    import json
    import signal

    with running(grace=20.0) as server:
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        body = json.dumps({"prompt": "x", "max_tokens": 60, "stream": True, "seed": 1})
        line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = line.getresponse()
        first = answer.readline()
        server.server.handle_exit(signal.SIGTERM, None)
        rest = answer.read()
        assert first.startswith(b"data: ") and rest.endswith(b"data: [DONE]\n\n")
        last = json.loads((first + rest).split(b"\n\n")[-3][6:])
        assert last["choices"][0]["finish_reason"] and "cut" not in last["choices"][0]
        line.close()


def test_who_connected_before_the_signal_is_answered() -> None:
    """Connections that the server had no time to take yet, because it was busy."""
    import signal

    with running() as server:
        free, busy = threading.Event(), threading.Event()
        server.service.loop.call_soon_threadsafe(lambda: busy.set() or free.wait(PATIENCE))
        assert busy.wait(PATIENCE)
        lines = [socket.create_connection(("127.0.0.1", server.port), PATIENCE) for _ in range(20)]
        for line in lines:
            line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.server.handle_exit(signal.SIGTERM, None)
        free.set()
        for line in lines:
            with line, line.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
                assert b"stopping" in answer.read()
