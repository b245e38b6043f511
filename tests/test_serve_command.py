"""`armd serve` says when it is ready and where, and a signal ends it with what it has."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch
from eval_models import saved, tiny_armd
from forked import Forked
from patience import PATIENCE

import armd
from armd.errors import ArmdError
from armd.runtime.seeds import seeded
from armd.serve import cache_pool as slots
from armd.serve.command import Serving, load, name_of, serve
from armd.serve.server import listening


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tiny_armd(max_length=512), tmp_path_factory.mktemp("model") / "poet")


def test_from_start_to_sigterm(folder: str) -> None:
    command = [sys.executable, "-m", "armd.cli", "serve", folder, "--port", "0", "--threads", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--grace", "0.2"], **pipes) as process:
        try:
            broken_off(process)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("under_way", ["text", "body"])
def test_a_second_signal_ends_the_server_at_once(
    folder: str, number: signal.Signals, under_way: str
) -> None:
    """Long before its grace is over, without a traceback, and with a text, or a body that is still
    coming, under way."""
    words = ["serve", folder, "--port", "0", "--threads", "1", "--grace", str(2 * PATIENCE)]
    with Forked(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            port = int(process.stdout.readline().split(":")[2].split()[0])
            body = json.dumps({"prompt": "a", "max_tokens": 500, "n": 60, "stream": True})
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = line.getresponse()
            assert answer.status == 200
            if under_way == "body":
                answer.read()
                line.putrequest("POST", "/v1/completions")
                line.putheader("Content-Type", "application/json")
                line.putheader("Content-Length", "100")
                line.endheaders(b"{")
            os.kill(process.pid, number)
            while is_open(port):  # two signals at once would be one
                time.sleep(0.01)
            os.kill(process.pid, number)
            assert process.wait(PATIENCE) == 0
            assert "Traceback" not in process.stderr.read()
            assert under_way == "text" or line.getresponse().status == 503
        finally:
            process.kill()


def is_open(port: int) -> bool:
    """Whether the server has not heard a signal yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE) as answer:
            return json.load(answer)["status"] == "ok"
    except OSError:
        return False


def broken_off(process) -> None:
    """Read on while the server is told to stop."""
    ready = process.stdout.readline()
    assert ready.startswith("poet is ready at http://127.0.0.1:"), process.stderr.read()
    line = http.client.HTTPConnection(
        "127.0.0.1", int(ready.split(":")[2].split()[0]), timeout=PATIENCE
    )
    body = json.dumps({"text": "a ____", "blank_length": 500})
    line.request("POST", "/v1/infill", body, {"Content-Type": "application/json"})
    answer = line.getresponse()
    assert answer.status == 200 and answer.readline()
    os.kill(process.pid, signal.SIGTERM)
    last = json.loads(answer.read().split(b"\n\n")[-2][6:])
    assert last["type"] == "end" and last["finish_reason"] == "length"
    there = sum(token is not None for token in last["tokens"])
    assert there == 501 if "cut" not in last else (last["cut"] == "shutdown" and 0 < there < 501)
    line.close()
    assert process.wait(PATIENCE) == 0
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"port": 70000}, "--port 70000"),
        ({"slots": 0}, "--slots 0"),
        ({"api_key": ""}, "--api-key"),
        ({"api_key": "a b"}, "--api-key"),
        ({"timeout": float("nan")}, "--timeout nan"),
        ({"max_body": 0}, "--max-body 0"),
        ({"host": "no.such.host.invalid"}, "cannot listen at no.such.host.invalid"),
    ],
)
def test_bad_options_name_the_fix(change: dict, said: str) -> None:
    with pytest.raises(ArmdError, match=said):
        serve(Serving("nowhere", **({"port": 0} | change)))


def test_a_taken_port_and_a_missing_model_are_said_at_once(tmp_path: Path) -> None:
    taken, said = listening("127.0.0.1", 0), pytest.raises(ArmdError, match="name another --port")
    with taken, said:
        serve(Serving(str(tmp_path), port=taken.getsockname()[1]))
    with pytest.raises(ArmdError, match="no model in"):
        serve(Serving(str(tmp_path), port=0))


def test_another_address_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from armd.serve.command import say

    service = SimpleNamespace(name="poet", limits=SimpleNamespace(slots=8), model=None)
    for bound in ("127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"):
        say(Serving("x", host="mine"), service, 8000, bound)
        assert capsys.readouterr().err == ""
    say(Serving("x", host="0.0.0.0"), service, 8000, "0.0.0.0")
    assert "other machines" in capsys.readouterr().err


def test_the_weights_of_a_quantized_folder_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from armd.native.packed import pack
    from armd.serve.command import say

    for packed, word in ((pack(tiny_armd(), "q8"), "q8"), (pack(tiny_armd()), "fp32")):
        service = SimpleNamespace(name="poet", limits=SimpleNamespace(slots=8), model=packed)
        say(Serving("x"), service, 8000, "127.0.0.1")
        assert f"8 slots, {word} weights" in capsys.readouterr().out


def test_a_run_is_called_by_its_own_name(tmp_path: Path) -> None:
    assert name_of(str(tmp_path / "demo" / "run" / "export")) == "demo"
    assert name_of(str(tmp_path / "poet")) == "poet"


def test_a_diffusion_baseline_is_refused(tmp_path: Path) -> None:
    from armd.baselines import config_of, model_class

    config = config_of("mdlm", vocab_size=257, d_model=16, n_layers=1, n_heads=2, max_length=8)
    baseline = saved(model_class("mdlm")(config), tmp_path / "baseline")
    with pytest.raises(ArmdError, match="a baseline that writes whole texts"):
        serve(Serving(baseline, port=0))


def test_a_model_that_cannot_write_is_not_said_to_be_ready(folder: str, monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("no such operation")

    monkeypatch.setattr("armd.serve.engine.Decoder.steps", broken)
    with pytest.raises(ArmdError, match=r"cannot write.*no such operation"):
        serve(Serving(folder, port=0, weights="plain"))


@pytest.mark.parametrize("weights", ["fp32", "plain", "q8"])
def test_who_writes_into_the_files_changes_nothing(
    folder: str, tmp_path: Path, weights: str
) -> None:
    """Such as cp of another model over the one that is served."""
    copy = shutil.copytree(folder, tmp_path / "model")
    service = load(Serving(str(copy), port=0, weights=weights))
    try:
        model = service.model
        drawn = armd.generate(model, length=12, generator=seeded(0))
        for file in copy.rglob("*.safetensors"):
            file.write_bytes(b"")  # the same file, cut
        assert torch.equal(armd.generate(model, length=12, generator=seeded(0)), drawn)
        assert str(copy) not in Path("/proc/self/maps").read_text()
    finally:
        service.engine.stop()
        assert service.engine.join(60)


def test_a_large_model_has_all_threads_and_a_small_one_a_thread(monkeypatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    model = tiny_armd()
    assert slots.threads_for(model) == 1
    monkeypatch.setattr(slots, "IN_A_CORE", 1000)
    assert slots.threads_for(model) == 6


def test_more_connections_than_files_are_refused_before_the_model_is_loaded(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    monkeypatch.setattr("armd.serve.command.load", lambda _: pytest.fail("too late"))
    with pytest.raises(ArmdError, match=r"lower it to 1\d\d, .*ulimit -n"):
        serve(Serving(folder, port=0, connections=1000))


@pytest.mark.parametrize("where", ["/dev/full", "a pipe that nobody reads"])
def test_the_line_that_it_is_ready_may_be_lost(folder: str, where: str) -> None:
    """A full disk under the log, or a reader that has left: clients are served."""
    if where == "/dev/full" and not Path(where).exists():
        pytest.skip("no /dev/full here")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if where == "/dev/full":
        out = os.open(where, os.O_WRONLY)
    else:
        reads, out = os.pipe()
        os.close(reads)
    words = [sys.executable, "-m", "armd.cli", "serve", folder, "--port", str(port)]
    words += ["--threads", "1", "--grace", "0"]
    server = subprocess.Popen(words, stdout=out, stderr=subprocess.PIPE, text=True)
    os.close(out)
    try:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and server.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
                break
            time.sleep(0.1)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        assert server.stderr is not None and server.stderr.read() == ""
    finally:
        server.kill()
