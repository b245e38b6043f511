"""`armd bench faults`: kills, full disks, damage, bad input and hostile clients, at random moments
that follow from a seed; a table of how many were tried and how many survived."""

from __future__ import annotations

import contextlib
import json as jsonlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import ArmdError
from ..runtime.atomic_files import write_text
from ..train.recipe_limits import check_between
from .fault_child import Tally
from .fault_inputs import bad_commands, damaged_folders
from .fault_jobs import SHARES, Bench
from .fault_requests import hostile_requests


def bench_faults(
    *,
    kills: int = 100,
    disks: int = 20,
    folders: int = 50,
    commands: int = 300,
    requests: int = 1000,
    owners: int = 4,
    cuts: int = 10**6,
    seed: int = 0,
    keep: Path | None = None,
    json: Path | None = None,
) -> list[Tally]:
    """Do to training, preparing, generating, evaluating and serving what a bad day does, and print
    what survived. Any number may be 0: then that kind is left out.

    Args:
        kills: kill -9 at random moments; then the command is given again, and what it leaves must
            be byte-identical to what an undisturbed one left.
        disks: Full disks, where this user may mount a small one.
        folders: Runs, models (exported, converted, quantized), adapters and datasets with damaged
            files.
        commands: Bad command lines.
        requests: Hostile requests to a server.
        owners: Times that two processes train in one folder.
        cuts: At most so many torn writes: files of a checkpoint cut at every 512 bytes.
        seed: Decides every moment, every damage and every word.
        keep: Work in this folder, and leave everything there.
        json: Write counts and failures to this file, after each try. If it is there already, what
            it counts is not tried again: a campaign may be stopped, and its kinds done one by one.
    """
    counts = {"kills": kills, "disks": disks, "folders": folders, "commands": commands}
    counts |= {"requests": requests, "owners": owners, "cuts": cuts}
    for name, count in counts.items():
        check_between(f"--{name}", count, 0, 10**6)
    record = Record(json, seed)
    with _place(keep) as place:
        bench = Bench(place)
        for name, share in SHARES.items():
            if count := round(kills * share / 100):
                bench.kill(name, count, record.tally(f"kill -9 of {name}"))
        for kind, count, work in (
            ("full disk", disks, bench.disk),
            ("two processes train in one folder", owners, bench.owners),
            ("checkpoint cut at a multiple of 512 bytes", cuts, bench.torn),
            ("damaged run, dataset, adapter or model", folders, damaged_folders(bench)),
            ("bad command line", commands, bad_commands(bench)),
            ("hostile request", requests, hostile_requests(bench)),
        ):
            if count:
                work(count, record.tally(kind))
    found = list(record.tallies.values())
    print("| fault | tried | survived |\n| --- | ---: | ---: |")
    print("\n".join(tally.row for tally in found))
    for tally in found:
        for failure in tally.failures:
            print(f"not survived: {tally.kind}: {failure}")
    return found


class Record:
    """The counts of each kind, in a file if there is one."""

    def __init__(self, file: Path | None, seed: int) -> None:
        self.file, self.seed, self.tallies = file, seed, {}
        if file is None or not file.exists():
            return
        try:
            content = jsonlib.loads(file.read_text("utf-8"))
            theirs = int(content["seed"])
            for kind, found in content["found"].items():
                tried, failures = int(found["tried"]), list(found["failures"])
                self.tallies[kind] = Tally(kind, seed, tried, failures, self.write)
        except (ValueError, LookupError, TypeError, AttributeError):
            wrong = f"{file} is there and holds no counts of armd bench faults"
            raise ArmdError(f"{wrong}; name another file") from None
        if theirs != seed:
            raise ArmdError(f"{file} is of seed {theirs}; use --seed {theirs}")

    def tally(self, kind: str) -> Tally:
        return self.tallies.setdefault(kind, Tally(kind, self.seed, kept=self.write))

    def write(self) -> None:
        if self.file is not None:
            found = {
                t.kind: {"tried": t.tried, "failures": t.failures} for t in self.tallies.values()
            }
            write_text(self.file, jsonlib.dumps({"seed": self.seed, "found": found}, indent=1))


@contextlib.contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="armd-faults-") as folder:
        yield Path(folder)
