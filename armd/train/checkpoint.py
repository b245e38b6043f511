"""Checkpoints: a folder a step, written aside by a thread of each process while training goes on,
and renamed into place only when every byte of every process is on the disk.

Each process writes the rows it holds as safetensors, so that any number of processes, with whole
models or with shares, can read what any other wrote. RUN must lie where all of them see it."""

import errno
import json
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ArmdError
from ..model.shapes import Tensor
from ..runtime.atomic_files import hash_file, read_text, remove, replace_text, sync_folder
from ..runtime.lock import Check, unchecked
from ..runtime.processes import ProcessGroup
from ..runtime.tensor_files import write_tensors
from ..runtime.threads import leave_core
from .distributed import first_row, local
from .run_folder import EXPORT
from .saved_checkpoint import (
    FACTS,
    ROWS,
    SUMS,
    Checkpoint,
    damage,
    name_of,
    open_checkpoint,
    steps_in,
)

NEWEST = "newest.json"
WRITER = "checkpoint writer"
"""The name of the thread that writes in the background."""
_PATIENCE = 1800.0
"""Seconds to wait for the files of the other processes."""
_NONE_YET, _NONE_LEFT, _UNREADABLE = -1, -2, -3


class Checkpoints:
    """The checkpoints of a run. `check` raises if its folder is another's by now."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        group: ProcessGroup,
        keep_at: tuple[int, ...] = (),
        check: Check = unchecked,
    ) -> None:
        self.folder, self.keep, self.group, self.keep_at = folder, keep, group, keep_at
        self.check = check
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        if group.first:
            folder.mkdir(parents=True, exist_ok=True)
            # what a killed run had begun to write or to remove, and nothing else that lies there
            for left in (*folder.glob(".step-*"), *folder.glob(f".{NEWEST}.*")):
                remove(left)
        group.wait()

    def save(
        self,
        facts: dict[str, Any],
        tensors: Mapping[str, Tensor],
        metrics: str,
        then: Callable[[Checkpoint], None],
    ) -> None:
        """Copy the tensors and write them in the background, with the rows of metrics that led to
        them; `then` runs on the first process once the checkpoint is in place. Waits for the one
        before it, if that is not done."""
        self.wait()
        self.check()
        if (self.folder / name_of(facts["step"])).exists():
            return
        copies = {name: local(t).detach().to("cpu", copy=True) for name, t in tensors.items()}
        rows = {name: first_row(t, self.group) for name, t in tensors.items()}
        thread = threading.Thread(
            target=self._guarded,
            args=(facts, copies, rows, metrics, then),
            name=WRITER,
            daemon=True,
        )
        thread.start()
        self.thread = thread

    def wait(self) -> None:
        """Until what is being written is written. Raises what went wrong there."""
        self.settle()
        self.raise_error()

    def settle(self) -> None:
        """The same, but raises nothing."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def raise_error(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        error, self.error = self.error, None
        if isinstance(error, OSError):
            left = max(self.steps(), default=None)
            kept = "none was written before" if left is None else f"the one of step {left} is whole"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            fix = "free some space" if full else "mend that"
            raise ArmdError(
                f"cannot write a checkpoint or its export in {self.folder.parent} "
                f"({error.strerror}); {kept}; {fix} and give the same command again"
            ) from error
        if error is not None:
            raise error

    def _guarded(self, facts: dict, copies: dict, rows: dict, metrics: str, then: Callable) -> None:
        leave_core()
        aside = self.folder / f".{name_of(facts['step'])}.tmp"
        try:
            self._write(aside, copies, rows)
            if self.group.first:
                then(self._put_in_place(aside, facts, metrics))
        except BaseException as error:  # the training loop raises it again
            self.error = error
            try:
                self.check()
                remove(aside)
            except ArmdError as exchanged:
                self.error = exchanged

    def _write(self, aside: Path, copies: dict, rows: dict) -> None:
        self.check()
        aside.mkdir(exist_ok=True)
        # with whole copies everywhere, the first process writes for all
        shared = any(rows.values()) or self.group.first
        number = self.group.rank
        file = aside / f"state-{number:05d}.safetensors"
        tensors = {name: t for name, t in copies.items() if t.numel()} if shared else {}
        starts = {name: rows[name] for name in tensors if rows[name]}
        digest = write_tensors(file, tensors, {"first_rows": json.dumps(starts)})
        self._put(aside / f"{number:05d}.sum", json.dumps({file.name: digest}))

    def _put_in_place(self, aside: Path, facts: dict[str, Any], metrics: str) -> Checkpoint:
        sums: dict[str, str] = {}
        deadline = time.monotonic() + _PATIENCE
        for rank in range(self.group.world):
            path = aside / f"{rank:05d}.sum"
            while not path.exists():
                if time.monotonic() > deadline:
                    raise ArmdError(f"process {rank} did not write its part of {aside}")
                self.check()
                time.sleep(0.01)
            sums |= json.loads(path.read_text())
            self.check()
            path.unlink()
        for name, text in ((FACTS, json.dumps(facts)), (ROWS, metrics)):
            self._put(aside / name, text)
            sums[name] = hash_file(aside / name)
        self._put(aside / SUMS, json.dumps(sums))
        place = self.folder / name_of(facts["step"])
        self.check()
        aside.rename(place)
        sync_folder(self.folder)
        self._put(self.folder / NEWEST, json.dumps({"step": facts["step"]}))
        self._remove_old()
        return Checkpoint(place, facts)

    def _put(self, path: Path, text: str) -> None:
        self.check()
        replace_text(path, text)

    def _remove_old(self) -> None:
        """All but the last few, the best on held-out text, and those that were asked for."""
        steps = self.steps()
        scores = {step: self._score(step) for step in steps}
        best = min(steps, key=lambda step: scores[step])
        stay = {*self.keep_at, *([best] if scores[best] < float("inf") else [])}
        for step in steps[: -self.keep]:
            if step not in stay:
                self.check()
                away = self.folder / f".{name_of(step)}.old"
                (self.folder / name_of(step)).rename(away)
                remove(away)

    def _score(self, step: int) -> float:
        try:
            facts = json.loads(read_text(self.folder / name_of(step) / FACTS))
            return float(facts["heldout"] or "inf")
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            return float("inf")

    def steps(self) -> list[int]:
        return steps_in(self.folder)

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, the same for every process; None in a new run."""
        step = self.group.from_first(self._newest_whole() if self.group.first else 0)
        if step == _NONE_LEFT:
            raise ArmdError(
                f"no whole checkpoint is left in {self.folder}; put one back, begin in another "
                "folder (with --start from its export), or remove the run's to start over"
            )
        return open_checkpoint(self.folder, step) if step >= 0 else None

    def _newest_whole(self) -> int:
        steps = self.steps()
        expected = newest_written(self.folder)
        if expected == _UNREADABLE:
            warnings.warn(f"{self.folder / NEWEST} is damaged; written anew", stacklevel=2)
        elif expected is not None and expected > max(steps, default=-1):
            warnings.warn(f"the checkpoint of step {expected} is missing", stacklevel=2)
        for step in reversed(steps):
            place = self.folder / name_of(step)
            try:
                wrong = damage(place)
            except OSError as error:  # it may be whole: nothing is put aside for that
                raise ArmdError(
                    f"cannot read {error.filename or place} ({error.strerror}); mend that, or move "
                    f"{place} away to go on with the checkpoint before"
                ) from None
            self.check()
            if wrong is None:
                if expected != step:
                    replace_text(self.folder / NEWEST, json.dumps({"step": step}))
                return step
            warnings.warn(
                f"the checkpoint of step {step} is damaged ({wrong}); using the one before",
                stacklevel=2,
            )
            away = self.folder / f"damaged-{name_of(step)}"
            remove(away)
            place.rename(away)
        # an export comes after a checkpoint: the run had some, and would replace it by a newer one
        new = expected is None and not steps and not (self.folder.parent / EXPORT).exists()
        return _NONE_YET if new else _NONE_LEFT


def newest_written(folder: Path) -> int | None:
    """The step of the newest checkpoint that was ever finished; None in a new run."""
    try:
        step = json.loads(read_text(folder / NEWEST))["step"]
        return step if type(step) is int and step >= 0 else _UNREADABLE
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return _UNREADABLE
