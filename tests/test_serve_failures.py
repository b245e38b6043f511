"""What fails in the engine is logged with its traceback; an engine that has failed itself leaves
nobody waiting, and says so."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from serving import Running, running

from armd.generation.decoder import Decoder
from armd.serve import engine as engines

LOG = logging.getLogger("uvicorn.error")


@contextmanager
def running_logged(caplog: pytest.LogCaptureFixture, **limits) -> Iterator[Running]:
    """uvicorn takes off all handlers when it begins."""
    with running(**limits) as server:
        LOG.addHandler(caplog.handler)
        try:
            yield server
        finally:
            LOG.removeHandler(caplog.handler)


def broken(*_):
    raise MemoryError("none left")


BODIES = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 4, "n": 2},
    "/v1/infill": {"text": "a ____", "stream": False},
    "/v1/score": {"text": "ab"},
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/infill"])
@pytest.mark.parametrize("where", ["steps", "begin"])
def test_what_fails_a_text_is_in_the_log(path: str, where: str, caplog, monkeypatch) -> None:
    owner = Decoder if where == "steps" else engines
    monkeypatch.setattr(owner, where, broken)
    with running_logged(caplog) as server:
        assert httpx.post(server.url + path, json=BODIES[path]).status_code == 500
        server.at_rest()
        assert httpx.get(server.url + "/health").status_code == 200
    assert "in broken" in caplog.text and "MemoryError: none left" in caplog.text


def test_an_engine_that_has_failed_leaves_nobody_waiting_and_says_so(caplog, monkeypatch) -> None:
    monkeypatch.setattr(engines, "share_pass", broken)
    with running_logged(caplog, slots=1) as server, ThreadPoolExecutor(8) as pool:

        def ask(path: str) -> httpx.Response:
            return httpx.post(server.url + path, json=BODIES[path], timeout=60)

        first = list(pool.map(ask, [*BODIES] * 2))
        assert {answer.status_code for answer in first} <= {200, 500, 503}
        assert any(answer.status_code == 500 for answer in first)
        health = httpx.get(server.url + "/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "failed")
        for path in BODIES:
            answer = ask(path)
            assert answer.status_code == 503 and "start the server again" in answer.text
        assert httpx.get(server.url + "/metrics").status_code == 200
        assert not server.service.engine.active and not server.service.engine.waiting
    assert "in broken" in caplog.text
