"""The commands that a campaign disturbs, what each leaves behind, and what is done to them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from .fault_child import Commands, Tally, digest

OFTEN = ("--log-every", 1, "--validate-rows", 4, "--checkpoint-every", 2, "--device", "cpu")
TINY = (
    *("--d-model", 16, "--n-layers", 2, "--n-two-stream", 1, "--n-heads", 2, "--length", 16),
    *("--steps", 18, "--i-ar", 2, "--i-perm", 6, "--rho", 4, "--sbp-steps", 6, "--warmup", 3),
    *("--batch-size", 4, "--micro-batch", 2, "--validate-every", 6, "--sample-every", 0),
    *("--query", "prefix", *OFTEN),
)
ADAPTED = (
    *("--steps", 8, "--length", 16, "--streams", 1, 2, 4, "--rank", 2, "--alpha", 4),
    *("--warmup", 2, "--validate-every", 4, *OFTEN),
)
NEEDS = {
    "prepare": (),
    "train": ("prepare",),
    "export": ("train",),
    "generate": ("train",),
    "eval": ("train",),
    "neighbor": ("prepare",),
    "adapt": ("neighbor",),
    "llama": ("neighbor",),
    "gguf": ("neighbor",),
    "converted": ("llama",),
    "quantized": ("train",),
}
SHARES = {"train": 40, "export": 14, "prepare": 12, "generate": 16, "eval": 6, "adapt": 12}
"""Of 100 kills."""
LAST = {"train": "step-00000024", "adapt": "step-00000008"}


class Bench:
    """What nothing happened to, to compare with, and the faults that need it."""

    def __init__(self, place: Path) -> None:
        self.place, self.whole, self.run = place, place / "whole", Commands(place)
        words = ("the order of a text is cut into blocks, drawn at once " * 8).split()
        lines = [" ".join(words[i * j % len(words)] for j in range(1, 14)) for i in range(600)]
        self.source = place / "text.jsonl"
        self.source.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        self.jobs: dict[str, tuple[float, str]] = {}
        self.run.run("--version")  # what starts with the first command is no part of its time

    def need(self, name: str) -> tuple[float, str]:
        """The seconds that a command takes, and the digest of what it leaves."""
        if name not in self.jobs:
            for before in NEEDS[name]:
                self.need(before)
            if name == "export":  # is made by training
                self.jobs[name] = self.jobs["train"]
            else:
                took = self.run.seconds(*self.words(name, self.out(name)))
                self.jobs[name] = (took, self.result(name, self.out(name)))
        return self.jobs[name]

    def out(self, name: str) -> Path:
        return self.whole / (name + (".gguf" if name == "gguf" else ""))

    def words(self, name: str, out: Path, *, again: bool = False) -> tuple[object, ...]:
        """The command; `again` as it is given after a fault."""
        data, run, base = (self.whole / part for part in ("prepare", "train", "neighbor"))
        if name == "prepare":
            return ("prepare", self.source, "--tokenizer", "byte", "--out", out, "--workers", 1)
        if name in ("train", "export"):
            return ("train", "mini", "--data", data, "--out", out, *TINY)
        if name == "neighbor":
            return (*self.words("train", out), "--query", "neighbor", "--n-two-stream", 2)
        if name == "adapt":
            return ("adapt", base, "--data", data, "--out", out, *ADAPTED)
        if name in ("llama", "gguf"):
            return ("convert", base, out, "--to", name)
        if name == "converted":
            return ("convert", self.whole / "llama", out)
        if name == "quantized":
            return ("quantize", run, out, "--windows", 0)
        if name == "generate":
            more = ("--resume",) if again else ()
            fixed = ("--count", 40, "--length", 16, "--batch", 4, "--out", out, *more)
            return ("generate", run, *fixed)
        return ("eval", "ppl", run, "--data", self.source, "--json", out)

    def result(self, name: str, out: Path) -> str:
        """What the command left behind, as one digest."""
        if name in ("train", "export", "adapt"):
            last = out / "checkpoints" / LAST["adapt" if name == "adapt" else "train"]
            parts = (last, out / "export", out / "metrics.jsonl", out / "adapter")
            return " ".join(digest(part) for part in parts if part.exists())
        if name == "eval":
            return json.dumps(_figures(json.loads(out.read_text())), sort_keys=True)
        return digest(out)

    def after(self, name: str, out: Path) -> str | None:
        """Give the command again; what is wrong with what it leaves, or None."""
        ended = self.run.run(*self.words(name, out, again=True))
        if ended.wrong or ended.code:
            return ended.wrong or f"the next run ended with 2: {ended.said.strip()[-200:]}"
        if self.result(name, out) != self.need(name)[1]:
            return "other bytes"
        if name in ("prepare", "train", "export", "adapt"):
            checked = self.run.run("verify", out)
            return f"verify: {checked.said.strip()[-200:]}" if checked.code else None
        return None

    def kill(self, name: str, count: int, tally: Tally) -> Tally:
        """At a random moment of the command; those of `export` while an export is written."""
        seconds = self.need(name)[0]
        attempt = 0
        while tally.tried < count and attempt < 20 * count:
            attempt += 1
            out = self.place / "killed" / f"{name}-{tally.tried}"
            draw = tally.draw(attempt)
            once, moment = None, draw.uniform(0, seconds)
            if name == "export":
                once, moment = out / ".export.tmp", draw.uniform(0, 0.03)
                for _ in range(draw.randrange(4)):  # at a later one of its exports
                    self.run.killed(self.words(name, out), moment, once)
            if self.run.killed(self.words(name, out), moment, once):
                tally.add(f"after {moment:.3f} s", self.after(name, out))
            elif once is None:  # it had ended: the first, which was timed, may compile kernels
                seconds = moment
            _remove(out)
        return tally

    def disk(self, count: int, tally: Tally) -> Tally:
        """On a small disk of memory, made larger afterwards; counted where it was full."""
        disk, attempt = self.place / "disk", 0
        disk.mkdir(exist_ok=True)
        while tally.tried < count and attempt < 20 * count:
            attempt += 1
            draw = tally.draw(attempt)
            name = draw.choice(["train", "train", "adapt", "prepare", "generate", "eval"])
            self.need(name)
            kilobytes = draw.randrange(4, 8 + 2 * _kilobytes(self.out(name)))
            if _quiet("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", disk):
                print("full disks are left out: this user may not mount one")
                break
            try:
                ended = self.run.run(*self.words(name, disk / "out"))
                _quiet("mount", "-o", "remount,size=256m", disk)
                if ended.code:
                    wrong = ended.wrong or self.after(name, disk / "out")
                    tally.add(f"{name} on {kilobytes} kB", wrong)
            finally:
                _quiet("umount", disk)
        return tally

    def owners(self, count: int, tally: Tally) -> Tally:
        self.need("train")
        while tally.tried < count:
            out = self.place / f"two-{tally.tried}"
            both = [self.run.start(self.words("train", out)) for _ in range(2)]
            ended = [self.run.end(process) for process in both]
            wrong = next((e.wrong for e in ended if e.wrong), None)
            codes = sorted(e.code or 0 for e in ended)
            if not wrong and codes not in ([0, 2], [0, 0]):  # one after the other is well too
                wrong = f"ended with {codes}"
            tally.add(f"pair {tally.tried}", wrong or self.after("train", out))
            _remove(out)
        return tally

    def torn(self, count: int, tally: Tally) -> Tally:
        """Each file of a checkpoint cut at every 512 bytes: none is taken for whole."""
        from ..train.saved_checkpoint import damage

        self.need("train")
        copy, number = self.place / "torn", 0
        shutil.copytree(self.out("train") / "checkpoints" / LAST["train"], copy)
        for file in sorted(copy.iterdir()):
            content = file.read_bytes()
            for size in range(0, len(content), 512):
                number += 1
                if tally.tried < number <= count:
                    file.write_bytes(content[:size])
                    tally.add(f"{file.name} at {size}", None if damage(copy) else "taken as whole")
            file.write_bytes(content)
        return tally


def _figures(content: object) -> object:
    """Without times, speeds and places."""
    if isinstance(content, dict):
        left = ("seconds", "tokens_per_second", "made", "time", "date", "command", "machine")
        return {k: _figures(v) for k, v in content.items() if k not in left}
    return [_figures(item) for item in content] if isinstance(content, list) else content


def _kilobytes(out: Path) -> int:
    files = [out] if out.is_file() else [p for p in out.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files) >> 10


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _quiet(*words: object) -> int:
    return subprocess.run(list(map(str, words)), capture_output=True).returncode
