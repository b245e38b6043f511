"""`armd bench faults`: kills, full disks, damage, bad input and hostile clients, at random moments
that follow from a seed; a table of how many were tried and how many survived."""

from __future__ import annotations

import contextlib
import json as jsonlib
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..runtime.atomic_files import hash_file
from .fault_child import Commands, Tally, digest

TINY = (
    *("--d-model", 16, "--n-layers", 2, "--n-two-stream", 1, "--n-heads", 2, "--length", 16),
    *("--steps", 18, "--i-ar", 2, "--i-perm", 6, "--rho", 4, "--sbp-steps", 6, "--warmup", 3),
    *("--batch-size", 4, "--micro-batch", 2, "--log-every", 1, "--validate-every", 6),
    *("--validate-rows", 4, "--checkpoint-every", 2, "--sample-every", 0, "--device", "cpu"),
)


def bench_faults(
    *,
    kills: int = 100,
    disks: int = 20,
    folders: int = 50,
    commands: int = 300,
    requests: int = 1000,
    owners: int = 4,
    seed: int = 0,
    keep: Path | None = None,
    json: Path | None = None,
) -> list[Tally]:
    """Do to training, preparing, generating, evaluating and serving what a bad day does, and print
    what survived.

    Args:
        kills: kill -9 at random moments; then the command is given again, and what it leaves must
            be byte-identical to what an undisturbed one left.
        disks: Full disks, where this user may mount a small one.
        folders: Runs, models and datasets with damaged files.
        commands: Bad command lines.
        requests: Hostile requests to a server.
        owners: Times that two processes train in one folder.
        seed: Decides every moment, every damage and every word.
        keep: Work in this folder, and leave everything there.
        json: Write the counts and the failures to this file.
    """
    draw = random.Random(seed)
    with _place(keep) as place:
        bench = Bench(place)
        found = [*bench.kills(kills, draw), bench.disks(disks, draw), bench.owners(owners)]
        found.append(bench.torn_writes())
        from .fault_inputs import bad_commands, damaged_folders, hostile_requests

        found.append(damaged_folders(bench, folders, draw))
        found.append(bad_commands(bench, commands, draw))
        found.append(hostile_requests(bench, requests, draw))
    print("| fault | tried | survived |\n| --- | ---: | ---: |")
    print("\n".join(tally.row for tally in found if tally.tried))
    for tally in found:
        for failure in tally.failures:
            print(f"not survived: {tally.kind}: {failure}")
    if json is not None:
        content = {t.kind: {"tried": t.tried, "failures": t.failures} for t in found}
        json.write_text(jsonlib.dumps({"seed": seed, "found": content}, indent=1) + "\n")
    return found


@contextlib.contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="armd-faults-") as folder:
        yield Path(folder)


class Bench:
    """What nothing happened to, to compare with, and the faults that need it."""

    def __init__(self, place: Path) -> None:
        self.place, self.run = place, Commands(place)
        words = ("the order of a text is cut into blocks, drawn at once " * 8).split()
        lines = [" ".join(words[i * j % len(words)] for j in range(1, 14)) for i in range(600)]
        self.source = place / "text.jsonl"
        self.source.write_text("".join(jsonlib.dumps({"text": line}) + "\n" for line in lines))
        self.jobs: dict[str, tuple[tuple[object, ...], float, str]] = {}
        for name in ("prepare", "train", "generate", "eval"):
            out = place / "whole" / name
            took = self.run.seconds(*self.words(name, out))
            self.jobs[name] = (self.words(name, out), took, self.result(name, out))

    def words(self, name: str, out: Path, *, again: bool = False) -> tuple[object, ...]:
        """The command; `again` as it is given after a fault."""
        whole = self.place / "whole"
        if name == "prepare":
            return ("prepare", self.source, "--tokenizer", "byte", "--out", out, "--workers", 1)
        if name == "train":
            return ("train", "mini", "--data", whole / "prepare", "--out", out, *TINY)
        if name == "generate":
            more = ("--resume",) if again else ()
            fixed = ("--count", 40, "--length", 16, "--batch", 4, "--out", out, *more)
            return ("generate", whole / "train", *fixed)
        return ("eval", "ppl", whole / "train", "--data", self.source, "--json", out)

    def result(self, name: str, out: Path) -> str:
        """What the command left behind, as one digest."""
        if name == "train":
            parts = (out / "checkpoints" / "step-00000024", out / "export", out / "metrics.jsonl")
            return " ".join(digest(part) for part in parts)
        if name == "eval":
            return jsonlib.dumps(_figures(jsonlib.loads(out.read_text())), sort_keys=True)
        return content_digest(out)

    def after(self, name: str, out: Path) -> str | None:
        """Give the command again; what is wrong with what it leaves, or None."""
        ended = self.run.run(*self.words(name, out, again=True))
        if ended.wrong or ended.code:
            return ended.wrong or f"the next run ended with 2: {ended.said.strip()[-200:]}"
        return None if self.result(name, out) == self.jobs[name][2] else "other bytes"

    def kills(self, count: int, draw: random.Random) -> Iterator[Tally]:
        share = {"train": 0.55, "prepare": 0.15, "generate": 0.2, "eval": 0.1}
        for name, part in share.items():
            tally = Tally(f"kill -9 of {name}")
            number = 0
            while tally.tried < round(part * count):
                number += 1
                out = self.place / "killed" / f"{name}-{number}"
                moment = draw.uniform(0, self.jobs[name][1])
                if self.run.killed(self.words(name, out), moment):
                    tally.add(f"after {moment:.2f} s", self.after(name, out))
                elif number > 10 * count:
                    break  # it ends sooner than it can be killed
                _remove(out)
            yield tally

    def disks(self, count: int, draw: random.Random) -> Tally:
        """On a small disk of memory, made larger afterwards."""
        tally, disk = Tally("full disk"), self.place / "disk"
        disk.mkdir()
        while tally.tried < count:
            name = draw.choice(["train", "train", "prepare", "generate"])
            size = {"train": 400, "prepare": 200, "generate": 40}[name]
            kilobytes = draw.randrange(4, size)
            options = f"size={kilobytes}k"
            if _quiet("mount", "-t", "tmpfs", "-o", options, "tmpfs", disk):
                break  # this user may not mount
            try:
                ended = self.run.run(*self.words(name, disk / "out"))
                wrong = ended.wrong
                _quiet("mount", "-o", "remount,size=64m", disk)
                tally.add(f"{name} on {kilobytes} kB", wrong or self.after(name, disk / "out"))
            finally:
                _quiet("umount", disk)
        return tally

    def owners(self, count: int) -> Tally:
        tally = Tally("two processes train in one folder")
        for number in range(count):
            out = self.place / f"two-{number}"
            both = [self.run.start(self.words("train", out)) for _ in range(2)]
            codes = sorted(self.run.end(process).code or 0 for process in both)
            wrong = self.after("train", out) if codes in ([0, 2], [0, 0]) else f"ended with {codes}"
            tally.add(f"pair {number}", wrong)
        return tally

    def torn_writes(self) -> Tally:
        """Each file of a checkpoint cut at every 512 bytes: none is taken for whole."""
        from ..train.checkpoint import damage

        tally, copy = Tally("checkpoint cut at every 512 bytes"), self.place / "torn"
        shutil.copytree(self.place / "whole" / "train" / "checkpoints" / "step-00000024", copy)
        for file in sorted(copy.iterdir()):
            content = file.read_bytes()
            for size in range(0, len(content), 512):
                file.write_bytes(content[:size])
                tally.add(f"{file.name} at {size}", None if damage(copy) else "taken for whole")
            file.write_bytes(content)
        return tally


def content_digest(out: Path) -> str:
    """Of a file's content, or of what is below a folder, wherever it lies."""
    files = [out] if out.is_file() else sorted(p for p in out.rglob("*") if p.is_file())
    return " ".join(f"{p.relative_to(out)}:{hash_file(p)}" for p in files)


def _figures(content: object) -> object:
    """Without times, speeds and places."""
    if isinstance(content, dict):
        left = ("seconds", "tokens_per_second", "made", "time", "date", "command", "machine")
        return {k: _figures(v) for k, v in content.items() if k not in left}
    return [_figures(item) for item in content] if isinstance(content, list) else content


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)


def _quiet(*words: object) -> int:
    return subprocess.run(list(map(str, words)), capture_output=True).returncode
