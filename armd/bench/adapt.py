"""`armd bench adapt`: what does a step of adaptation cost over one of left-to-right fine-tuning?"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import tyro

from ..eval.results import table
from ..model.configuration_armd import ArmdConfig
from ..pretrained import model_folder
from ..runtime.atomic_files import write_figures
from ..runtime.processes import ProcessGroup
from ..train.adapt import AdaptTrainer
from ..train.adapt_command import Adapting, recipe_of
from ..train.curriculum import Stage, orders_of
from ..train.trainer import Batch, MicroBatch
from .timing import check_positive, interleave

LEFT_TO_RIGHT = Stage("shuffled", 0)
STEPS = {
    "left to right": LEFT_TO_RIGHT,
    "S = 2": Stage("strided", 2),
    "S = 4": Stage("strided", 4),
    "S = 8": Stage("strided", 8),
    "S = 4 after a prompt": Stage("strided", 4, prompt=0.25),
    "blanks": Stage("infill", Adapting.infill_span),
}


@dataclass(frozen=True)
class Row:
    """One kind of step, taught by the text or by the source."""

    step: str
    teacher: str
    seconds: float
    median: float
    ratio: float
    """Over left to right with the same teacher, minima; medians."""
    median_ratio: float


def bench_adapt(
    model: Annotated[str, tyro.conf.Positional],
    length: int = 1024,
    repeats: int = 3,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time steps of armd adapt, one window each, against left-to-right fine-tuning of a low-rank
    adapter with the same teacher, interleaved in one process. Windows are random tokens.

    Args:
        model: A folder that armd convert made.
        length: Tokens in a window.
        repeats: How often each kind of step is timed.
        json_file: The figures go here.
    """
    check_positive(length=length, repeats=repeats)
    sides: dict[tuple[str, str], Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {exact: _trainer(model, length, Path(folder), exact) for exact in (False, True)}
        for name, stage in STEPS.items():
            for teacher in ("text", "source"):
                if teacher == "text" or stage.kind != "infill":  # the text teaches blanks
                    trainer = trainers[stage != LEFT_TO_RIGHT]
                    sides[name, teacher] = partial(_step, trainer, stage, teacher, length)
        named = {" by ".join(key): work for key, work in sides.items()}
        times = interleave(named, repeats=repeats, device=torch.device("cpu"))
    rows = []
    for (name, teacher), took in zip(sides, times.values(), strict=True):
        base = times[f"left to right by {teacher}"]
        ratios = took.best / base.best, took.median / base.median
        rows.append(Row(name, teacher, took.best, took.median, *ratios))
    header = ["step", "teacher", "s", "median", "x left to right", "median"]
    cells = [[r.step, r.teacher, *(f"{x:.2f}" for x in list(asdict(r).values())[2:])] for r in rows]
    print(table(header, cells))
    streams = trainers[True].recipe.curriculum.streams
    for teacher in ("text", "source"):
        print(f"all steps as by default, {teacher}: {default_mix(rows, teacher, streams):.2f}")
    if json_file is not None:
        found = {"length": length, "rows": [asdict(row) for row in rows]}
        write_figures(json_file, found)


def default_mix(rows: list[Row], teacher: str, streams: Sequence[int]) -> float:
    """Seconds of an average step with armd adapt's own shares, over left to right by this teacher;
    `streams` are drawn with equal chances. After a prompt of a quarter, the mean of those drawn,
    S = 4 was timed, and the others are taken to save as much."""
    taken = {(r.step, r.teacher): r.seconds for r in rows}
    blanks, prompts = Adapting.p_infill, Adapting.p_prompt
    whole = sum(taken[f"S = {count}", teacher] for count in streams) / len(streams)
    saved = 1 - taken["S = 4 after a prompt", teacher] / taken["S = 4", teacher]
    mean = (1 - blanks) * whole * (1 - prompts * saved) + blanks * taken["blanks", "text"]
    return mean / taken["left to right", teacher]


def _trainer(model: str, length: int, folder: Path, exact: bool) -> AdaptTrainer:
    """An adapter at its start; a sample of one token stands for the data, which nothing reads."""
    sample = json.dumps({"ids": [1] * (length + 1)}) + "\n"
    (folder / "data.jsonl").write_text(2 * sample)  # one is held out
    job = Adapting(
        model, str(folder / "data.jsonl"), folder / f"run-{exact}", exact=exact, length=length
    )
    config = ArmdConfig.from_pretrained(model_folder(model))
    return AdaptTrainer(recipe_of(job), ProcessGroup(), config.vocab_size)


def _step(trainer: AdaptTrainer, stage: Stage, teacher: str, length: int) -> None:
    recipe = trainer.recipe
    adapt = replace(recipe.adapt, distill=float(teacher == "source"))
    trainer.recipe = replace(recipe, adapt=adapt)
    tokens = torch.randint(trainer.source.config.vocab_size, (1, length))
    scored = torch.ones(1, length, dtype=torch.bool)
    order = orders_of(stage, seed=0, step=0, rows=range(1), scored=scored)
    trainer.train_step(Batch(1, stage, [MicroBatch(tokens, tokens, order, length)], length))
