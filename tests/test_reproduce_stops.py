"""A study that is stopped goes on, one that is ended leaves no run behind, and one that has nowhere
to write says so in a line."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE
from test_reproduce import make_data

from armd import cli
from armd.reproduce import price
from armd.reproduce.command import measure_stage
from armd.reproduce.result_file import Findings
from armd.reproduce.runs import Study
from armd.reproduce.scale import tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("study"))


def command(data: Path, folder: Path, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "armd.cli", "reproduce", *words, "--scale", "tiny"),
        *("--data", str(data), "--out", str(folder / "out")),
        *("--results", str(folder / "results"), "--docs", str(folder / "docs")),
    ]


def test_an_interrupted_study_goes_on_and_measures_nothing_twice(data: Path, tmp_path: Path):
    words = command(data, tmp_path, "price")
    # a shell's background jobs ignore Ctrl-C, and so would their children
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=heed)
    assert first.stdout is not None
    for line in first.stdout:
        if "done in" in line:
            break
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=PATIENCE)
    assert first.returncode != 0
    second = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 0, second.stderr
    assert "armd: training" not in second.stdout  # the base run was done
    file = tmp_path / "results" / "reproduce-price.json"
    before = file.stat().st_mtime_ns
    third = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert third.returncode == 0 and "training" not in third.stdout
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
