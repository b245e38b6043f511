"""The run: steps, reports, validation, checkpoints; stopped at any moment, it goes on when the same
command is given again, and ends with the same weights."""

import contextlib
import errno
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..data.dataset import Dataset, open_dataset
from ..data.sampler import windows_of
from ..errors import ArmdError
from ..runtime.atomic_files import replace_text
from ..runtime.atomic_folders import our_folder
from ..runtime.device import find_device
from ..runtime.lock import Held, locked_elsewhere
from ..runtime.memory import keep_freed_memory
from ..runtime.processes import ProcessGroup, process_group
from ..runtime.standard_streams import printable
from .checkpoint import Checkpoints
from .curriculum import Stage
from .distributed import unwrapped
from .export import card_facts, export, exported_step
from .memory_estimate import check_fits
from .progress_view import ProgressView, StepReport
from .recipe import Recipe
from .run_folder import BOARD, EXPORT, KEPT, SAMPLES, Metrics, begin_run, check_start, open_run
from .saved_checkpoint import Checkpoint, checkpoint_of, name_of, steps_in
from .stop import Stop
from .trainer import Batch, Trainer, learning_rate_at, load_batch
from .validation import fixed_batches, heldout_losses, kinds_for


def train(recipe: Recipe, run: "type[Run] | None" = None) -> Path:
    """Train, or go on training, and return the run's folder. Ctrl-C exits with 130, SIGTERM and
    SIGHUP with 0, all after a checkpoint. `run` is the kind of run, where it is not a plain one."""
    recipe.check()
    dataset = open_dataset(recipe.data)
    check_fits(recipe, dataset.vocab_size)
    keep_freed_memory()
    with process_group(find_device(recipe.machine.device)) as group, Stop() as stop:
        devices = [group.device] if group.device.type == "cuda" else []
        ours, forked = _ours(recipe, dataset, group), torch.random.fork_rng(devices)
        with _quiet_warnings(group), ours as held, forked:
            number = (run or Run)(recipe, dataset, group, held).go(stop)
    if number == signal.SIGINT:
        raise SystemExit(130)
    if number:
        raise SystemExit(0)
    return Path(recipe.out)


@contextlib.contextmanager
def _ours(recipe: Recipe, dataset: Dataset, group: ProcessGroup) -> Iterator[Held]:
    """The run's folder, which the first process locks for all."""
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(open_run(recipe, dataset)) if group.first else None
        group.wait()
        yield held or stack.enter_context(locked_elsewhere(Path(recipe.out)))


@contextlib.contextmanager
def _quiet_warnings(group: ProcessGroup) -> Iterator[None]:
    """Our own warnings as one line each, from the first process."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **_: Any) -> None:
        if group.first and category is UserWarning:
            with contextlib.suppress(OSError):  # a full disk under the log does not end the run
                said = printable(str(message))
                print(f"armd: warning: {said}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


class Run:
    """A run that goes on from its newest whole checkpoint."""

    def __init__(self, recipe: Recipe, dataset: Dataset, group: ProcessGroup, held: Held) -> None:
        self.recipe, self.dataset, self.group, self.held = recipe, dataset, group, held
        self.folder, self.total = Path(recipe.out), recipe.curriculum.total
        self.split, self.tokenizer = dataset.split("train"), dataset.tokenizer_files()
        windows_of(self.split, recipe.network.length)
        self.heldout: list[Any] = []
        if recipe.report.validate_every:
            self.heldout = fixed_batches(
                dataset.split("heldout"),
                length=recipe.network.length,
                rows=recipe.report.validate_rows,
                batch_size=recipe.machine.micro_batch,
            )
        if fresh := not steps_in(self.folder / "checkpoints"):
            check_start(recipe, dataset)
        self.trainer = self.make_trainer()
        if fresh and recipe.start_step:
            self.trainer.resume(checkpoint_of(recipe.start, recipe.start_step))
        self.check()
        if group.first:
            begin_run(self.folder, recipe, dataset)
        kept = {"keep": recipe.report.keep, "keep_at": recipe.report.keep_at, "check": self.check}
        self.checkpoints = Checkpoints(self.folder / "checkpoints", group=group, **kept)
        found = self.checkpoints.newest() if self.total else None
        self.step = found.step if found else recipe.start_step
        if found:
            self.trainer.resume(found)
            # a kill may have come between the checkpoint and its export
            found_at = [exported_step(out, tell=group.first) for out in self.outs(found)]
            if group.first and any(step != found.step for step in found_at):
                self._export(found)
        saved = found.metrics() if found else None
        self.check()
        self.metrics = Metrics(self.folder, step=self.step, saved=saved) if group.first else None
        self.board = _board(self.folder) if recipe.report.tensorboard and group.first else None

    def check(self) -> None:
        """Before anything is written: raise if the folder is not the one this run began in."""
        self.held.check(
            f"{self.folder} was removed or replaced while it was trained; nothing was written "
            "there since; a run that was moved goes on in the folder where it is now"
        )

    def make_trainer(self) -> Trainer:
        return Trainer(self.recipe, self.group, self.dataset.vocab_size)

    def kinds(self) -> dict[str, Stage]:
        """The orders in which held-out text is read."""
        return kinds_for(self.recipe)

    def finish_without_steps(self) -> None:
        """What a run of no steps leaves; plain runs have some."""

    def go(self, stop: Stop) -> int:
        """Train to the end, or until asked to stop; returns the signal that asked, or 0."""
        span = {"start": self.step, "total": self.total}
        view = ProgressView(self.recipe.preset, **span, shown=self.group.first)
        if self.step:
            view.say(f"going on from step {self.step} of {self.total}")
        try:
            number = self._loop(stop, view)
            if not self.total and self.group.first:
                self.finish_without_steps()
            self.checkpoints.wait()
            self.check()
            self.group.wait()
        except Exception as error:
            self.check()  # what another process raised for it, or a file that is gone, follows
            if getattr(error, "errno", 0) not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ArmdError(
                f"the disk of {self.folder} is full; the last checkpoint is whole; free some "
                "space and give the same command again"
            ) from error
        finally:
            self.checkpoints.settle()  # who catches this may start the run again at once
            view.close()
            if self.metrics:
                self.metrics.close()
        if number:
            view.say(f"saved at step {self.step}; give the same command again to go on")
        else:
            view.say(f"done: {self.total} steps; the model is in {self.folder / EXPORT}")
        return number

    def _loop(self, stop: Stop, view: ProgressView) -> int:
        every = self.recipe.report
        busy, tokens = 0.0, 0
        for batch in self._batches():
            began = time.perf_counter()
            out = self.trainer.train_step(batch, stop=stop.signal)
            busy, tokens = busy + time.perf_counter() - began, tokens + int(self.trainer.scored)
            self.step += 1
            self.checkpoints.raise_error()
            last = self.step == self.total
            if due(self.step, every.log_every) or last:
                now = StepReport(
                    step=self.step,
                    loss=out.loss,
                    stage=str(batch.stage),
                    learning_rate=learning_rate_at(self.recipe.optimizer, batch.step, self.total),
                    grad_norm=out.grad_norm,
                    tokens_per_second=tokens / busy,
                )
                busy, tokens = 0.0, 0
                self._record(asdict(now))
                view.report(now)
            score = self._validate(view) if due(self.step, every.validate_every) or last else None
            if due(self.step, every.sample_every):
                self._sample()
            kept = self.step in every.keep_at
            if due(self.step, every.checkpoint_every) or kept or last or out.stop:
                self._save(score)
            if out.stop:
                return out.stop
        return 0

    def _batches(self) -> Iterator[Batch]:
        """The batches still to come. Beside a GPU the next one is made while it computes; on a CPU
        that would only take a core from the step."""
        args = (self.recipe, self.split, self.group)
        steps = range(self.step, self.total)
        if self.group.device.type == "cpu":
            yield from (load_batch(*args, step) for step in steps)
            return
        with ThreadPoolExecutor(1) as pool:
            ahead = None
            for step in steps:
                now = ahead or pool.submit(load_batch, *args, step)
                ahead = pool.submit(load_batch, *args, step + 1) if step + 1 < self.total else None
                yield now.result()

    def _validate(self, view: ProgressView) -> float | None:
        if not self.heldout:
            return None
        with self.trainer.ema_weights():
            losses = heldout_losses(
                self.trainer.model,
                self.heldout,
                self.kinds(),
                group=self.group,
                seed=self.recipe.seed,
            )
        self._record({"step": self.step, "heldout": losses})
        view.validated(self.step, losses)
        return next(iter(losses.values()))

    def _record(self, figures: dict[str, Any]) -> None:
        self.check()
        if self.metrics:
            self.metrics.write(**figures)
        if self.board:
            flat = {k: v for k, v in figures.items() if isinstance(v, float)}
            flat |= {f"heldout/{k}": v for k, v in figures.get("heldout", {}).items()}
            for name, value in flat.items():
                self.board.add_scalar(name, value, figures["step"])

    def _save(self, score: float | None) -> None:
        self.split.check_unchanged()
        if self.metrics:
            self.metrics.sync()
        facts = {"step": self.step, "heldout": score, "processes": self.group.world}
        facts["ema"] = bool(self.trainer.average)
        metrics = self.metrics.text if self.metrics else ""
        self.checkpoints.save(facts, self.trainer.state(), metrics, self._export)

    def outs(self, checkpoint: Checkpoint) -> list[Path]:
        """Where the weights of a checkpoint go: the newest, and those that are to be kept."""
        kept = self.folder / KEPT / name_of(checkpoint.step)
        asked = checkpoint.step in self.recipe.report.keep_at
        return [*([kept] if asked else []), self.folder / EXPORT]

    def _export(self, checkpoint: Checkpoint) -> None:
        config = self.recipe.config(self.dataset.vocab_size)
        facts = card_facts(self.recipe, self.dataset, checkpoint)
        for out in self.outs(checkpoint):
            self.check()
            if out.parent != self.folder:
                our_folder(out.parent)
            export(checkpoint, config, self.tokenizer, out, check=self.check, **facts)

    def _sample(self) -> None:
        """A text or two in RUN/samples. A model in shares cannot write: use its export."""
        if not self.group.first or self.recipe.machine.parallel == "fsdp2":
            return
        from .sample_texts import sample_texts

        with self.trainer.ema_weights():
            text = sample_texts(
                unwrapped(self.trainer.model), self.dataset, seed=self.recipe.seed, step=self.step
            )
        self.check()
        replace_text(our_folder(self.folder / SAMPLES) / f"{name_of(self.step)}.txt", text)


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ArmdError("--tensorboard needs it installed: pip install 'armd[tracking]'") from None
    return SummaryWriter(str(folder / BOARD))
