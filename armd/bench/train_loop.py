"""What the training loop costs over the bare work: forward, backward, optimizer step."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..data.dataset import open_dataset
from ..model.order import left_to_right
from ..runtime.device import find_device
from ..runtime.processes import ProcessGroup
from ..train.checkpoint import Checkpoints
from ..train.curriculum import Stage
from ..train.recipe import Recipe
from ..train.trainer import Batch, MicroBatch, Trainer, load_batch


@dataclass(frozen=True)
class Overhead:
    """Seconds a step, the bare work against the loop's, taken in turns on the same batches."""

    bare_min: float
    bare_median: float
    loop_min: float
    loop_median: float
    ratio_of_medians: float
    ratio_of_minima: float


def loop_overhead(recipe: Recipe, *, steps: int = 30, warmup: int = 3) -> Overhead:
    """Time the loop's step (load the texts, draw their orders, learn, clip, check) against forward,
    backward and optimizer step on the very same batch, one after the other."""
    recipe = replace(recipe, out=recipe.out or "none")
    group, dataset = (
        ProcessGroup(0, 1, find_device(recipe.machine.device)),
        open_dataset(recipe.data),
    )
    split = dataset.split("train")
    with torch.random.fork_rng([]):
        ours, theirs = (Trainer(recipe, group, dataset.vocab_size) for _ in range(2))
        bare, loop = [], []
        for step in range(steps + warmup):
            held = load_batch(recipe, split, group, step)

            def in_loop(step: int = step) -> None:
                ours.train_step(load_batch(recipe, split, group, step))

            def alone(held: Batch = held) -> None:
                bare_step(theirs, held)

            # whoever comes second finds the batch in the cache, so they take turns at that, too
            pair: list[tuple[Callable[[], None], list[float]]] = [(alone, bare), (in_loop, loop)]
            for work, seconds in pair if step % 2 else reversed(pair):
                began = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - began)
    bare, loop = bare[warmup:], loop[warmup:]
    medians = statistics.median(bare), statistics.median(loop)
    return Overhead(
        bare_min=min(bare),
        bare_median=medians[0],
        loop_min=min(loop),
        loop_median=medians[1],
        ratio_of_medians=medians[1] / medians[0],
        ratio_of_minima=min(loop) / min(bare),
    )


def bare_step(trainer: Trainer, batch: Batch) -> None:
    """Forward, backward, optimizer step: what no loop can do without."""
    for part in batch.parts:
        loss = trainer.model(part.tokens, order=part.order, labels=part.labels).loss
        (loss / len(batch.parts)).backward()
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Stall:
    """Seconds that a checkpoint holds the loop up, against a step without one."""

    save: float
    """Until `save` returns and the loop goes on."""
    step_before: float
    step_during: float
    """A step while the checkpoint is being written."""
    written: float
    """Until the checkpoint is on the disk."""


def checkpoint_stall(recipe: Recipe, vocab_size: int, batch: Batch) -> Stall:
    """Time a step, a checkpoint, and the step during which it is written."""
    group = ProcessGroup(0, 1, find_device(recipe.machine.device))
    with torch.random.fork_rng([]), tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(replace(recipe, out=folder), group, vocab_size)
        checkpoints = Checkpoints(Path(folder), keep=1, group=group)
        trainer.train_step(batch)
        marks = [time.perf_counter()]
        trainer.train_step(batch)
        marks.append(time.perf_counter())
        checkpoints.save({"step": 2, "heldout": None}, trainer.state(), "", lambda _: None)
        marks.append(time.perf_counter())
        trainer.train_step(batch)
        marks.append(time.perf_counter())
        checkpoints.wait()
        marks.append(time.perf_counter())
    return Stall(
        save=marks[2] - marks[1],
        step_before=marks[1] - marks[0],
        step_during=marks[3] - marks[2],
        written=marks[4] - marks[2],
    )


def report_loop(data: str, *, steps: int = 30) -> dict[str, dict[str, float]]:
    """The loop at the `mini` size in each phase of its curriculum, and a checkpoint at `small`."""
    from ..train.presets import preset

    mini, small = replace(preset("mini"), data=data), preset("owt-small")
    phases = {
        "left to right": replace(mini.curriculum, i_ar=10**6, i_perm=10**6),
        "shuffled": replace(mini.curriculum, i_ar=0, i_perm=1),
        "strided": replace(mini.curriculum, steps=0, i_ar=0, i_perm=0),
    }
    figures = {}
    for name, curriculum in phases.items():
        cost = loop_overhead(replace(mini, curriculum=curriculum), steps=steps)
        figures[name] = asdict(cost)
        print(
            f"loop over bare step, {name}: {cost.ratio_of_minima:.3f} (minima), "
            f"{cost.ratio_of_medians:.3f} (medians) of {cost.bare_median * 1e3:.0f} ms"
        )
    one = replace(small.optimizer, batch_size=1)
    small = replace(small, optimizer=one, machine=replace(small.machine, micro_batch=1))
    length, vocab_size = small.network.length, 50257
    tokens = torch.randint(vocab_size, (1, length))
    part = MicroBatch(tokens, tokens, left_to_right(length), length)
    batch = Batch(0, Stage("shuffled", 0), [part], length)
    stall = checkpoint_stall(small, vocab_size, batch)
    figures["checkpoint at small"] = asdict(stall)
    print(
        f"checkpoint at small: a step {stall.step_before:.1f} s, while it is written "
        f"{stall.step_during:.1f} s, save returns after {stall.save:.1f} s"
    )
    return figures
