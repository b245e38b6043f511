"""What a campaign sends that is wrong: damaged folders, bad command lines, hostile requests."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .fault_child import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .faults import Bench

NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e9", "1e99", "-0.5", "1e-99", "9" * 30, "x", "")
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 10**30, 0.5, float("nan"), "x", "", [], [[]], {}, {"a": 1}),
    *("../../etc/passwd", "/etc/passwd", "a" * 10_000, [10**9], "\ud800"),
)


def damaged_folders(bench: Bench, count: int, draw: random.Random) -> Tally:
    """One file of a run, a model or a dataset is damaged; whoever opens it goes on with the same
    result, or says in one line what is wrong."""
    tally = Tally("damaged run, model or dataset")
    whole = bench.place / "whole"
    for number in range(count):
        copy = bench.place / f"damaged-{number}"
        kind = draw.choice(["run", "run", "model", "dataset"])
        origin = {"run": whole / "train", "model": whole / "train" / "export"}
        shutil.copytree(origin.get(kind, whole / "prepare"), copy)
        files = sorted(p for p in copy.rglob("*") if p.is_file() and p.suffix != ".py")
        file = draw.choice(files)
        how = damage_file(file, draw)
        words = {
            "run": bench.words("train", copy),
            "model": ("generate", copy, "--length", 8),
            "dataset": ("train", "mini", "--data", copy, "--out", copy / "run", *_tiny()),
        }[kind]
        ended = bench.run.run(*words)
        what = f"{kind}, {file.relative_to(copy)} {how}"
        wrong = ended.wrong
        if (
            not wrong
            and kind == "run"
            and ended.code == 0
            and bench.result("train", copy) != (bench.jobs["train"][2])
        ):
            wrong = "other bytes"
        checked = bench.run.run("verify", copy)
        tally.add(what, wrong or checked.wrong)
        shutil.rmtree(copy)
    return tally


def _tiny() -> tuple[object, ...]:
    from .faults import TINY

    return TINY


HARMS = ("cut", "flipped", "empty", "removed", "linked", "a folder", "value", "value")


def damage_file(file: Path, draw: random.Random) -> str:
    """Damage it in one of many ways; says how."""
    content = file.read_bytes()
    how = draw.choice(HARMS)
    if how == "value" and file.suffix == ".json":
        with suppress(ValueError):
            table = json.loads(content)
            name = change_value(table, draw)
            file.write_text(json.dumps(table))
            return f"with another {name}"
    if how in ("removed", "linked", "a folder"):
        file.unlink()
        if how == "linked":
            file.symlink_to("/etc/hostname")
        elif how == "a folder":
            file.mkdir()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "cut":
        file.write_bytes(content[: draw.randrange(len(content) + 1)])
    elif content:
        at = draw.randrange(len(content))
        file.write_bytes(
            content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
        )
    return how


def change_value(table: Any, draw: random.Random) -> str:
    """Put a wrong value somewhere into a JSON table; says where."""
    if not isinstance(table, dict) or not table:
        raise ValueError
    name = draw.choice(sorted(table))
    if isinstance(table[name], dict) and table[name] and draw.random() < 0.7:
        return f"{name}.{change_value(table[name], draw)}"
    table[name] = draw.choice(VALUES)
    return name


OPTIONS: dict[str, tuple[str, ...]] = {
    "train": (
        *("--d-model", "--n-layers", "--n-two-stream", "--n-heads", "--length", "--dropout"),
        *("--steps", "--i-ar", "--i-perm", "--rho", "--sbp-steps", "--streams", "--p-random"),
        *("--p-masking", "--masking-steps", "--batch-size", "--learning-rate", "--beta1", "--eps"),
        *("--beta2", "--weight-decay", "--warmup", "--final-rate", "--clip", "--ema", "--keep"),
        *("--log-every", "--validate-every", "--validate-rows", "--checkpoint-every", "--device"),
        *("--micro-batch", "--seed", "--model", "--data", "--out", "--config", "--start"),
    ),
    "generate": (
        *("--length", "--count", "--streams", "--steps", "--order", "--temperature", "--top-k"),
        *("--top-p", "--min-p", "--repetition-penalty", "--match-entropy", "--seed", "--batch"),
        *("--threads", "--device", "--prompt", "--prompts", "--template", "--blank-lengths"),
        *("--out", "--json"),
    ),
    "prepare": (
        *("--rows", "--documents", "--field", "--heldout", "--seed", "--bpe-bytes"),
        *("--shard-tokens", "--workers", "--tokenizer", "--out", "--json"),
    ),
    "inspect": ("--step", "--rows", "--data", "--width"),
    "serve": ("--port", "--slots", "--queue", "--timeout", "--grace", "--threads", "--device"),
}


def bad_commands(bench: Bench, count: int, draw: random.Random) -> Tally:
    """One option has a value that is no number, out of range, a path that cannot be, or no text."""
    tally, whole = Tally("bad command line"), bench.place / "whole"
    places = (
        "/etc/hostname",
        "/etc/hostname/x",
        "/proc/x",
        "\udcff",
        str(bench.source),
        ".",
    )
    for number in range(count):
        verb = draw.choice(
            ["train"] * 4 + ["generate"] * 3 + ["prepare"] * 2 + ["inspect", "serve"]
        )
        out = bench.place / f"bad-{number}"
        base = {
            "train": bench.words("train", out),
            "generate": ("generate", whole / "train", "--length", 8),
            "prepare": bench.words("prepare", out),
            "inspect": ("inspect", whole / "train", "--step", 1),
            "serve": ("serve", whole / "train", "--host", "256.0.0.1"),
        }[verb]
        option = draw.choice(OPTIONS[verb])
        value = draw.choice((*NUMBERS, *places))
        ended = bench.run.run(*base, option, value)
        tally.add(f"{verb} {option} {value!r}", ended.wrong)
        shutil.rmtree(out, ignore_errors=True)
    return tally


def hostile_requests(bench: Bench, count: int, draw: random.Random) -> Tally:
    """No request makes the server fail, or keeps the next one from its answer."""
    tally = Tally("hostile request")
    with serving(bench.place / "whole" / "train") as port:
        for _ in range(count):
            sent = hostile(draw)
            found = exchange(port, sent)
            wrong = None
            if found.split(b" ")[1:2] and found.split(b" ")[1].startswith(b"5"):
                wrong = found[:80].decode("latin-1")
            if not exchange(port, b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n").count(b"ok"):
                wrong = "the next client got no answer"
            tally.add(repr(sent[:80]), wrong)
    return tally


@contextmanager
def serving(model: Path) -> Iterator[int]:
    import uvicorn

    from ..serve.app import make_app
    from ..serve.command import Serving, listening, load
    from ..serve.connections import LimitedProtocol

    opened = listening("127.0.0.1", 0)
    service = load(Serving(str(model), slots=2, queue=4, timeout=5))
    config = uvicorn.Config(make_app(service), log_level="critical", http=LimitedProtocol)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield opened.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        service.engine.stop()


def hostile(draw: random.Random) -> bytes:
    """A request that no client of good faith sends."""
    kind = draw.random()
    if kind < 0.15:
        return draw.randbytes(draw.randrange(1, 4000))
    paths = ("/v1/completions", "/v1/infill", "/v1/score", "/v1/order", "/v1/tokenize", "/", "/x")
    path, method = (
        draw.choice(paths),
        draw.choice(("POST", "POST", "POST", "GET", "PUT", "OPTIONS")),
    )
    fields = ("prompt", "text", "tokens", "known", "order", "max_tokens", "temperature", "top_p")
    fields += (
        "seed",
        "n",
        "stream",
        "stop",
        "streams",
        "logprobs",
        "blank_length",
        "length",
        "kind",
    )
    body: Any = {
        name: draw.choice((*VALUES, "a __ b", "random")) for name in draw.sample(fields, 3)
    }
    text = json.dumps(draw.choice((body, body, body, [body], "x"))).encode("utf-8", "surrogatepass")
    length = draw.choice((len(text),) * 6 + (0, len(text) + 5, 10**12, -1))
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines.append(f"content-length: {length}")
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
