"""A study that is stopped goes on, one that is ended leaves no run behind, and one that has nowhere
to write says so in a line."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked import Forked
from patience import PATIENCE
from test_reproduce import make_data

from armd import cli
from armd.reproduce import price, train_runs
from armd.reproduce.command import measure_stage
from armd.reproduce.result_file import Findings
from armd.reproduce.runs import Study, Trained
from armd.reproduce.scale import tiny
from armd.runtime.signals import PARENT


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("study"))


def command(data: Path, folder: Path, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "armd.cli", "reproduce", *words, "--scale", "tiny"),
        *("--data", str(data), "--out", str(folder / "out")),
        *("--results", str(folder / "results"), "--docs", str(folder / "docs")),
    ]


def test_an_interrupted_study_goes_on_and_measures_nothing_twice(
    data: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str], unchecked: None
):
    words = command(data, tmp_path, "price")[3:]
    with Forked([*words, "--jobs", "1"], stdout=subprocess.PIPE) as first:
        for line in first.stdout:
            if "done in" in line:
                break
        first.send_signal(signal.SIGINT)
        first.stdout.read()
        assert first.wait()
    monkeypatch.setattr(train_runs, "subprocess", SimpleNamespace(Popen=Forked))
    cli.run(words)
    said = capsys.readouterr().out
    assert "armd: training" not in said  # the base run was done
    assert "sbp-20: training" in said
    file = tmp_path / "results" / "reproduce-price.json"
    before = file.stat().st_mtime_ns
    cli.run(words)
    assert "training" not in capsys.readouterr().out
    assert file.stat().st_mtime_ns == before
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "price of independence" in page and "Not run yet: `armd reproduce generation`" in page


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_study_that_is_ended_leaves_no_run_behind(data: Path, tmp_path: Path, number: int):
    words = command(data, tmp_path, "ablations")
    heed = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731
    study = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=heed)
    assert study.stdout is not None
    for line in study.stdout:
        if line.endswith("steps\n"):
            break

    def runs() -> list[Path]:
        mine = [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.name != str(study.pid)]
        return [p for p in mine if str(tmp_path).encode() in read_quietly(p)]

    while not runs():  # it was announced, and starts
        assert study.poll() is None
        time.sleep(0.05)
    study.send_signal(number)
    study.communicate(timeout=PATIENCE)
    assert study.returncode == 128 + number
    assert not runs()


STARTS = """
import sys, time
from dataclasses import replace
from pathlib import Path
from armd.reproduce.runs import Study, Trained
from armd.reproduce.scale import tiny
from armd.reproduce.train_runs import start
out, data = map(Path, sys.argv[1:])
base = tiny().base
recipe = replace(base, curriculum=replace(base.curriculum, steps=10**6))
recipe = replace(recipe, report=replace(recipe.report, log_every=1, checkpoint_every=0))
worker = start(Study(tiny(), out, data), Trained("long", recipe), jobs=1, launcher=[])
print(worker.process.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone tells a child")
def test_a_run_saves_and_ends_with_a_study_that_is_killed(data: Path, tmp_path: Path):
    words = [sys.executable, "-c", STARTS, str(tmp_path), str(data)]
    study = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert study.stdout is not None
    study.stdout.readline()  # that it is training
    run = int(study.stdout.readline())
    log = tmp_path / "logs" / "long.log"
    try:
        until(lambda: "loss" in log.read_text())
        study.kill()
        study.wait(PATIENCE)
        until(lambda: "saved at step" in log.read_text())
        until(lambda: str(tmp_path).encode() not in read_quietly(Path(f"/proc/{run}/cmdline")))
    finally:
        study.kill()
        with contextlib.suppress(OSError):
            os.kill(run, signal.SIGKILL)


def test_a_run_whose_study_has_ended_does_not_begin():
    words = [sys.executable, "-m", "armd.cli", "--version"]
    environment = os.environ | {PARENT: "another"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM and not done.stdout


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_checksums_of_a_run_that_is_done_are_compared_once(tmp_path: Path, monkeypatch):
    """Not at each look at the runs that train: of a large model they take a while."""
    asked, looks = [], iter([False, False, True] * 3)
    monkeypatch.setattr(train_runs, "done", lambda _, run: asked.append(run.name) or not run.after)
    monkeypatch.setattr(train_runs, "start", lambda *_, **__: object())
    monkeypatch.setattr(train_runs, "ended", lambda *_: next(looks))
    monkeypatch.setattr(train_runs, "time", SimpleNamespace(sleep=lambda _: None))
    study, scale = Study(tiny(), tmp_path, tmp_path), tiny()
    runs = [Trained("base", scale.base), *(Trained(n, scale.base, "base") for n in "abc")]
    assert not train_runs.train_all(study, runs, jobs=1)
    assert sorted(asked) == ["a", "b", "base", "c"]


@pytest.mark.parametrize("place", ["results", "docs"])
def test_places_that_cannot_be_written_are_found_before_training(
    data: Path, tmp_path: Path, place: str
):
    (tmp_path / "file").write_text("no folder")
    words = {"--scale": "tiny", "--data": str(data), "--out": str(tmp_path / "out")}
    words |= {"--results": str(tmp_path / "r"), "--docs": str(tmp_path / "d")}
    words |= {f"--{place}": str(tmp_path / "file" / "under")}
    with pytest.raises(OSError, match="Not a directory"):
        cli.run(["reproduce", "price", *(word for pair in words.items() for word in pair)])
    assert not (tmp_path / "out").exists()


def test_a_result_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def measure(study: Study, findings: Findings) -> None:
        (tmp_path / "reproduce-price.json").mkdir()
        findings.entry("one", {}, lambda: {"nats": 1.0})

    monkeypatch.setattr(price, "measure", measure)
    study = Study(tiny(), tmp_path / "out", tmp_path / "data")
    failed = measure_stage(study, "price", "tiny", tmp_path)
    assert "reproduce-price.json" in failed["price"]
    assert "Traceback" not in capsys.readouterr().err


def read_quietly(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
