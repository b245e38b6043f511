"""Commands in child processes that start in milliseconds, because one process has imported torch
for all of them; and what the campaign against them shares."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PRELOADED = ["armd.cli", "armd.train.loop", "armd.train.command", "armd.commands.generate"]
PRELOADED += ["armd.data.prepare", "armd.generation.api", "armd.native.packed", "armd.eval.ppl"]
MEMORY = 6 << 30
"""Bytes that a command may take."""
WITHIN = 300.0
"""Seconds after which a command counts as hanging."""


@dataclass
class Tally:
    """One kind of fault: how often it was tried, and what did not survive it."""

    kind: str
    seed: int = 0
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    kept: Callable[[], None] = lambda: None
    """Called after each try, to write the counts down."""

    def add(self, what: str, wrong: str | None) -> None:
        self.tried += 1
        if wrong:
            self.failures.append(f"{what}: {wrong}")
        self.kept()

    def draw(self, *more: int) -> random.Random:
        """What decides the next try: it follows from the seed, the kind and its number alone, so
        that a campaign that was stopped goes on as if it had not been."""
        return random.Random(" ".join(map(str, (self.seed, self.kind, self.tried, *more))))

    @property
    def row(self) -> str:
        survived = self.tried - len(self.failures)
        return f"| {self.kind} | {self.tried:,} | {survived:,} |"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    said: str

    @property
    def wrong(self) -> str | None:
        """What no command may do, whatever is done to it."""
        if self.code is None:
            return f"still running after {WITHIN:.0f} s"
        if "Traceback" in self.said:
            return self.said.strip().splitlines()[-1][:200]
        if self.code not in (0, 2):
            return f"ended with {self.code}"
        if self.code == 2 and not self.said.strip():
            return "ended with 2 and no reason"
        return None


def context() -> Any:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


def child(words: Sequence[str], log: str, here: str) -> None:
    """The command as a shell would start it, with what it says in a file."""
    handle = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(here)
    import torch

    from armd import cli

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))  # others work on this machine too
    sys.argv = ["armd", *words]
    cli.main()


class Commands:
    """Starts commands, and kills them."""

    def __init__(self, folder: Path) -> None:
        self.context, self.log, self.count = context(), folder / "logs", 0
        self.here = folder / "here"
        for made in (self.log, self.here):
            made.mkdir()

    def start(self, words: Sequence[object]) -> Any:
        self.count += 1
        log = self.log / f"{self.count:05d}.txt"
        process = self.context.Process(
            target=child,
            args=([str(word) for word in words], str(log), str(self.here)),
            daemon=True,
        )
        process.start()
        process.log = log
        return process

    def end(self, process: Any, within: float = WITHIN) -> Ended:
        process.join(within)
        code = process.exitcode
        if code is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        text = process.log.read_text("utf-8", "replace") if process.log.exists() else ""
        process.log.unlink(missing_ok=True)
        return Ended(code, text)

    def run(self, *words: object) -> Ended:
        return self.end(self.start(words))

    def killed(self, words: Sequence[object], seconds: float, once: Path | None = None) -> bool:
        """Start it and kill it after so many seconds, counted from when `once` is there; False if
        it had ended before."""
        process = self.start(words)
        while once is not None and process.exitcode is None and not once.exists():
            time.sleep(0.0005)
        process.join(seconds)
        alive = process.exitcode is None
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        self.end(process)
        return alive

    def seconds(self, *words: object) -> float:
        """How long it takes when nothing happens to it."""
        begin = time.monotonic()
        ended = self.run(*words)
        if ended.code != 0:
            raise RuntimeError(f"armd {' '.join(map(str, words))} failed: {ended.said[-500:]}")
        return time.monotonic() - begin


def digest(place: Path) -> str:
    """Of a file, or of every name and byte below a folder; speeds left out."""
    total = hashlib.sha256()
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    for file in files:
        total.update(file.relative_to(place).as_posix().encode())
        total.update(_lasting(file))
    return total.hexdigest()


def _lasting(file: Path) -> bytes:
    """A file's content without the speeds in metrics.jsonl, and without the checksum over them."""
    if file.name == "sha256.json":
        sums = json.loads(file.read_text())
        sums.pop("metrics.jsonl", None)
        return json.dumps(sums).encode()
    if file.name != "metrics.jsonl":
        return file.read_bytes()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row.pop("tokens_per_second", None)
    return json.dumps(rows).encode()
