"""One checkpoint that was saved: is it whole, and what is in it? A run may come from anybody."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ArmdError
from ..model.shapes import Tensor
from ..runtime.atomic_files import hash_file, open_plain, read_text
from ..runtime.processes import ProcessGroup
from .distributed import first_row, local

NO_FILE = (errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.ENODEV)
"""Errors that say that something else lies in a file's place. Others (permissions, a network disk
that is away, too many open files) say nothing about it: it may be whole, and be read later."""
FACTS, SUMS, ROWS = "facts.json", "sha256.json", "metrics.jsonl"


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint."""

    folder: Path
    facts: dict[str, Any]

    @property
    def step(self) -> int:
        return self.facts["step"]

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("state-*.safetensors"))

    def metrics(self) -> str | None:
        """The rows of metrics up to this step; None in a checkpoint of an earlier version."""
        try:
            with open_plain(self.folder / ROWS) as file:
                return file.read().decode("utf-8")
        except FileNotFoundError:
            return None

    def load(self, tensors: Mapping[str, Tensor], group: ProcessGroup) -> None:
        """Fill the tensors (or this process's shares of them) by name. Raises unless the checkpoint
        holds all of them, in this size, and no other weights."""
        foreign = (SafetensorError, LookupError, TypeError, ValueError, AttributeError)
        try:
            there = self.shapes("")
        except foreign:  # its checksums fit, so that somebody else made it
            there = {}
        others = {name for name in there if name.startswith("model/")} - tensors.keys()
        if others:
            raise ArmdError(f"{self.folder} holds '{min(others)}', too; is it another model's?")
        for name, tensor in tensors.items():
            mine, start = local(tensor), first_row(tensor, group)
            try:
                fits = there.get(name) == list(tensor.shape)
                found = self.read_rows(name, mine, start) if fits else -1
            except foreign:
                found = -1
            if found != len(mine):
                raise ArmdError(
                    f"{self.folder} holds no '{name}' of this size; is it another model's?"
                )

    def read_rows(self, name: str, out: Tensor, start: int) -> int:
        """Copy rows start, start + 1 ... of a stored tensor; how many of them were found."""
        found = 0
        for path in self.files():
            with safe_open(path, "pt") as file:
                if name not in file.keys():  # noqa: SIM118 - no dict
                    continue
                begin = json.loads(file.metadata()["first_rows"]).get(name, 0)
                part = file.get_slice(name)
                if list(part.get_shape()[1:]) != list(out.shape[1:]):
                    return 0
                end = begin + part.get_shape()[0]
                if (low := max(start, begin)) < (high := min(start + len(out), end)):
                    out[low - start : high - start] = part[low - begin : high - begin]
                    found += high - low
        return found

    def weights(self, prefix: str) -> dict[str, Tensor]:
        """The whole tensors whose names begin so, by the rest of their names."""
        found = {}
        for name, shape in self.shapes(prefix).items():
            found[name.removeprefix(prefix)] = out = torch.empty(shape)
            self.read_rows(name, out, 0)
        return found

    def shapes(self, prefix: str) -> dict[str, list[int]]:
        """The whole shapes of the tensors whose names begin so."""
        shapes: dict[str, list[int]] = {}
        for path in self.files():
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - no dict
                    if name.startswith(prefix):
                        rows, *rest = file.get_slice(name).get_shape()
                        shapes[name] = [rows + shapes.get(name, [0])[0], *rest]
        return shapes


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def steps_in(folder: Path) -> list[int]:
    found = {p.name: p.name[5:] for p in folder.glob("step-*") if p.name[5:].isdecimal()}
    return sorted(int(step) for name, step in found.items() if name == name_of(int(step)))


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in a word, or None. An OSError if that cannot be told."""
    if folder.is_symlink() or any(path.is_symlink() for path in folder.glob("*")):
        return "it is or holds a link, which may lead anywhere"
    try:
        sums = json.loads(read_text(folder / SUMS))
        for name, digest in sums.items():
            if Path(name).name != name:
                return f"{SUMS} names files of other folders"
            if hash_file(folder / name) != digest:
                return f"{name} has another checksum"
        if FACTS not in sums:
            return f"{FACTS} has no checksum"
        facts = json.loads(read_text(folder / FACTS))
        fits = type(facts["step"]) is int and name_of(facts["step"]) == folder.name
        fits = fits and isinstance(facts.get("heldout"), int | float | None)
        return None if fits else f"{FACTS} is another's"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return f"{Path(error.filename or SUMS).name} cannot be read"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{SUMS} or {FACTS} cannot be read"


def open_checkpoint(folder: Path, step: int) -> Checkpoint:
    place = folder / name_of(step)
    return Checkpoint(place, json.loads(read_text(place / FACTS)))


def checkpoint_of(run: str, step: int) -> Checkpoint:
    """The whole checkpoint of one step of a run."""
    folder = Path(run) / "checkpoints"
    if step not in steps_in(folder):
        there = ", ".join(map(str, steps_in(folder))) or "none"
        fix = f"train it with --keep-at {step}"
        raise ArmdError(f"{run} has no checkpoint of step {step} (it has {there}); {fix}")
    if wrong := damage(folder / name_of(step)):
        raise ArmdError(
            f"the checkpoint of step {step} in {run} is damaged ({wrong}); copy it anew"
        )
    return open_checkpoint(folder, step)
