"""What a campaign gives to commands that is wrong: damaged folders and bad command lines."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .fault_child import Tally
from .fault_jobs import TINY, Bench
from .fault_requests import VALUES

FOLDERS = {"run": 4, "model": 3, "dataset": 3, "adapter": 2, "llama": 2, "gguf": 1}
FOLDERS |= {"converted": 3, "quantized": 3}
"""How often each is damaged, beside the others."""
WRITES = ("model", "converted", "quantized")
"""Those that `armd generate` opens."""
HARMS = ("cut", "flipped", "empty", "removed", "linked", "a folder", "value", "value")


def damaged_folders(bench: Bench) -> Callable[[int, Tally], Tally]:
    """One file is damaged; whoever opens it goes on with the same result, or says in one line what
    is wrong. Where a folder has no checksums (adapters, other people's models), another result is
    allowed."""

    def work(count: int, tally: Tally) -> Tally:
        while tally.tried < count:
            draw = tally.draw()
            kind = draw.choices(list(FOLDERS), list(FOLDERS.values()))[0]
            name = {"dataset": "prepare"}.get(kind, "copy")  # a model card names its data
            copy = bench.place / f"damaged-{tally.tried}" / name
            origin = origin_of(bench, kind)
            shutil.copytree(origin, copy) if origin.is_dir() else _alone(origin, copy)
            file = draw.choice(sorted(p for p in copy.rglob("*") if p.is_file()))
            how = damage_file(file, draw)
            tally.add(f"{kind}, {file.relative_to(copy)} {how}", opened(bench, kind, copy))
            shutil.rmtree(copy.parent)
        return tally

    return work


def origin_of(bench: Bench, kind: str) -> Path:
    """The whole folder, or file, of a kind."""
    name = {"run": "train", "model": "train", "dataset": "prepare", "adapter": "adapt"}
    made = name.get(kind, kind)
    bench.need(made)
    inside = {"model": "export", "adapter": "adapter"}.get(kind, "")
    return bench.out(made) / inside


def _alone(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy(file, folder)


def opened(bench: Bench, kind: str, copy: Path) -> str | None:
    """Give a damaged folder to the command that reads it; what is wrong with how that ends."""
    out = copy / "out"
    if kind == "adapter":
        bench.need("llama")
    file = next(copy.glob("*.gguf"), copy / "no.gguf")
    ended = bench.run.run(
        *{
            "run": bench.words("train", copy),
            **{name: writes(copy, out) for name in WRITES},
            "dataset": ("train", "mini", "--data", copy, "--out", out, *TINY),
            "adapter": ("convert", bench.out("llama"), out, "--adapter", copy),
            "llama": ("convert", copy, out),
            "gguf": ("convert", file, out),
        }[kind]
    )
    if ended.wrong or ended.code:
        return ended.wrong
    same = True
    if kind in ("run", "dataset"):
        run = copy if kind == "run" else out
        for path in (run / "export").glob("*.before"):
            path.unlink()  # what was damaged, which might be what a user had put there
        same = bench.result("train", run) == bench.need("train")[1]
    if kind in WRITES:
        whole = bench.place / f"written-by-{kind}"
        if not whole.exists():
            bench.run.seconds(*writes(origin_of(bench, kind), whole))
        same = texts(out) == texts(whole)
    checked = None if kind in ("adapter", "gguf") else bench.run.run("verify", copy).wrong
    return checked if same else "other bytes"


def writes(model: Path, out: Path) -> tuple[object, ...]:
    return ("generate", model, "--length", 16, "--count", 4, "--out", out)


def texts(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]


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
        flipped = content[at] ^ 1 << draw.randrange(8)
        file.write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])
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


NEVER = ("nan", "inf", "-inf", "1e99", "9" * 30, "x", "")
"""No number that any option takes."""
NUMBERS = (*NEVER, "-1", "0", "1e9", "-0.5", "1e-99", "1000000000")
ENDLESS = ("--steps", "--sbp-steps", "--draws")
"""Where the last of these is no mistake, but work without end."""
TEXTS = ("--prompt", "--template", "--documents", "--field", "--out", "--json", "--data", "--seed")
"""Options that may take such words."""
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
        *("--rows", "--wrap", "--documents", "--field", "--heldout", "--seed", "--bpe-bytes"),
        *("--shard-tokens", "--workers", "--tokenizer", "--out", "--json"),
    ),
    "eval": (
        *("--limit", "--order", "--streams", "--steps", "--draws", "--seed", "--batch"),
        *("--window", "--data", "--protocol", "--tokenizer", "--device", "--precision", "--json"),
    ),
    "adapt": (
        *("--steps", "--streams", "--p-infill", "--distill", "--length", "--batch-size", "--rank"),
        *("--learning-rate", "--warmup", "--alpha", "--seed", "--log-every", "--validate-rows"),
        *("--checkpoint-every", "--micro-batch", "--device", "--data", "--out"),
    ),
    "convert": ("--max-length", "--adapter", "--to", "--type"),
    "inspect": ("--step", "--rows", "--data", "--width"),
    "serve": ("--port", "--slots", "--queue", "--timeout", "--grace", "--threads", "--device"),
}
OFTEN = {"train": 4, "generate": 3, "prepare": 2, "adapt": 2}


def bad_commands(bench: Bench) -> Callable[[int, Tally], Tally]:
    """One option has a value that is no number, out of range, a path that cannot be, or no text."""

    def work(count: int, tally: Tally) -> Tally:
        bench.need("generate")
        bench.need("adapt")
        while tally.tried < count:
            draw = tally.draw()
            verb = draw.choices(list(OPTIONS), [OFTEN.get(verb, 1) for verb in OPTIONS])[0]
            option = draw.choice(OPTIONS[verb])
            file, out = (bench.place / f"bad-{name}-{tally.tried}" for name in ("file", "out"))
            file.write_text("mine")
            places = ("/etc/hostname/x", "/proc/x", "\udcff", file, file / "x", ".")
            value = draw.choice((*NUMBERS[: -1 if option in ENDLESS else None], *places))
            ended = bench.run.run(*good_words(bench, verb, out), option, value)
            wrong = ended.wrong
            if not wrong and ended.code == 0 and value in NEVER and option not in TEXTS:
                wrong = "accepted"
            tally.add(f"{verb} {option} {str(value)!r}", wrong)
            for left in (file, out):
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        return tally

    return work


def good_words(bench: Bench, verb: str, out: Path) -> tuple[object, ...]:
    """A command that would work."""
    if verb in ("train", "prepare", "adapt"):
        return bench.words(verb, out)
    run = bench.out("train")
    return {
        "generate": ("generate", run, "--length", 8),
        "eval": ("eval", "ppl", run, "--data", bench.source, "--limit", 2),
        "convert": ("convert", bench.out("neighbor"), out, "--to", "llama"),
        "inspect": ("inspect", run, "--step", 1),
        "serve": ("serve", run, "--host", "256.0.0.1"),
    }[verb]
