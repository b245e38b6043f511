"""What a campaign sends to a server that no client of good faith sends."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from .fault_child import Tally
from .fault_jobs import Bench

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 10**30, 0.5, float("nan"), "x", "", [], [[]], {}, {"a": 1}),
    *("../../etc/passwd", "/etc/passwd", "a" * 10_000, [10**9], "\ud800"),
)
"""Also wrong values for the fields of a JSON file."""
AT_ONCE = 10
"""Hostile clients beside each other; then one of good faith must get its answer."""
PATHS = ("/v1/completions", "/v1/infill", "/v1/score", "/v1/order", "/v1/tokenize", "/", "/x")
PATHS += ("/v1/chat/completions", "/v1/models/x", "/page/..%2f..%2fetc%2fpasswd", "*")
FIELDS = (
    "prompt",
    "text",
    "tokens",
    "known",
    "order",
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
)
FIELDS += ("n", "stream", "stop", "streams", "logprobs", "blank_length", "length", "kind", "suffix")
FIELDS += ("messages", "echo", "repetition_penalty", "top_k", "rivals", "blank", "model", "steps")
HEALTH = b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n"


def hostile_requests(bench: Bench) -> Callable[[int, Tally], Tally]:
    """No request makes the server fail, or keeps the next one from its answer."""

    def work(count: int, tally: Tally) -> Tally:
        from ..serve.command import Serving, load
        from ..serve.server import in_thread

        bench.need("train")
        service = load(Serving(str(bench.out("train")), slots=2, queue=64, timeout=5))
        with in_thread(service, log_level="critical") as port:
            while tally.tried < count:
                many = min(AT_ONCE, count - tally.tried)
                sent = [hostile(tally.draw(number)) for number in range(many)]
                with ThreadPoolExecutor(many) as pool:
                    found = list(pool.map(partial(exchange, port), sent))
                well = b"ok" in exchange(port, HEALTH)
                for one, answer in zip(sent, found, strict=True):
                    status = answer.split(b" ")[1:2]
                    failed = bool(status) and status[0].startswith(b"5")
                    wrong = answer[:80].decode("latin-1") if failed else None
                    tally.add(repr(one[:80]), wrong if well else "then there was no answer")
        return tally

    return work


def hostile(draw: random.Random) -> bytes:
    """A request that no client of good faith sends."""
    kind = draw.random()
    if kind < 0.15:
        return draw.randbytes(draw.randrange(1, 4000))
    path, method = draw.choice(PATHS), draw.choice(("POST",) * 3 + ("GET", "PUT", "OPTIONS"))
    values = (*VALUES, "a __ b", "random", [{"role": "user", "content": "x"}])
    body: Any = {name: draw.choice(values) for name in draw.sample(FIELDS, 3)}
    text = json.dumps(draw.choice((body, body, body, [body], "x"))).encode("utf-8", "surrogatepass")
    length = draw.choice((len(text),) * 6 + (0, len(text) + 5, 10**12, -1))
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines.append(f"content-length: {length}")
    if draw.random() < 0.1:
        odd = ("transfer-encoding: chunked", "content-length: 5", "host: x", "expect: 100-continue")
        lines.append(draw.choice(odd))
    if draw.random() < 0.2:
        lines.append(f"x: {'y' * draw.choice((10, 10_000, 100_000))}")
    if draw.random() < 0.2:
        lines += [f"h{i}: v" for i in range(draw.choice((5, 500)))]
    if draw.random() < 0.1:
        lines[0] = f"GET /{'u' * draw.choice((100, 100_000))} HTTP/1.1"
    lines.append("connection: close")
    sent = "\r\n".join(lines).encode() + b"\r\n\r\n" + text
    return sent if draw.random() < 0.85 else sent[: draw.randrange(1, len(sent))]


def exchange(port: int, sent: bytes) -> bytes:
    """What comes back within a second or two; nothing where the server hangs up or waits."""
    found = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as line:
        line.sendall(sent)
        while part := line.recv(65536):
            found += part
    return found
