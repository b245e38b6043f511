"""There is one way to run the server, and it believes no header about who the client is."""

import http.client
import json
from dataclasses import fields

import pytest
from patience import PATIENCE
from serving import running

from armd.bench import serve as bench
from armd.serve.command import Serving
from armd.serve.connections import LimitedProtocol
from armd.serve.limits import Limits
from armd.serve.server import Server


def test_requests_of_one_connection_are_of_one_client_whatever_they_say(monkeypatch) -> None:
    with running() as server:
        clients, submit = set(), server.service.engine.submit

        def spied(requests, *, client, later):
            clients.add(client)
            return submit(requests, client=client, later=later)

        monkeypatch.setattr(server.service.engine, "submit", spied)
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        for number in range(3):
            headers = {"Content-Type": "application/json", "X-Forwarded-For": f"10.0.0.{number}"}
            line.request("POST", "/v1/completions", json.dumps({"max_tokens": 1}), headers)
            assert json.load(line.getresponse())["choices"]
        line.close()
    assert len(clients) == 1


def test_the_bench_times_the_server_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits of connections, its log, its client."""
    made, run = [], Server.run

    def spied(server: Server, **given) -> None:
        made.append(server.config)
        run(server, **given)

    monkeypatch.setattr(Server, "run", spied)
    monkeypatch.setitem(bench.SIZES, "demo", ("tiny", 300, 16))
    with running(), bench.serving("demo", 2):
        served, timed = made
    for name in ("http_protocol_class", "ws_protocol_class", "access_log", "proxy_headers"):
        assert getattr(timed, name) == getattr(served, name), name
    assert timed.http_protocol_class is LimitedProtocol


def test_a_limit_has_one_default() -> None:
    options = {field.name: field.default for field in fields(Serving)}
    assert all(options[field.name] == field.default for field in fields(Limits))
