"""There is one way to run the server, and it believes no header about who the client is."""

import http.client
import json
import logging
import socket
from dataclasses import fields

import pytest
from patience import PATIENCE
from serving import running

from armd.bench import serve as bench
from armd.serve.command import Serving
from armd.serve.connections import LimitedProtocol
from armd.serve.limits import Limits
from armd.serve.log_limit import once_per_second
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


def test_a_client_writes_no_log_full(monkeypatch, caplog) -> None:
    """What has a traceback is always there."""
    log = logging.getLogger("uvicorn.error")
    with running() as server:
        log.addHandler(caplog.handler)
        monkeypatch.setattr(once_per_second, "seconds", 900.0)
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", server.port)) as line:
                line.sendall(b"no HTTP\r\n\r\n")
                assert b" 400 " in line.recv(999)
        monkeypatch.setattr(once_per_second, "seconds", 0.0)
        log.warning("Invalid HTTP request received.")
        log.removeHandler(caplog.handler)
    said = [record.message for record in caplog.records if "Invalid HTTP" in record.message]
    assert len(said) <= 3 and sum(int(s.split("(")[-1].split()[0]) for s in said if "(" in s) >= 28


def test_a_limit_has_one_default() -> None:
    options = {field.name: field.default for field in fields(Serving)}
    assert all(options[field.name] == field.default for field in fields(Limits))
