"""`armd reproduce --scale paper`: every run and command behind the paper's tables. A plan with
hours and cost comes first, then training, measuring and the page, each done once."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..data.manifest import MANIFEST
from ..errors import ArmdError, no_such
from ..runtime.atomic_folders import our_folder
from ..runtime.device import find_device
from ..train.cost_estimate import GPUS
from ..train.run_folder import EXPORT
from .paper_cells import Cell, Measure, cells
from .paper_options import PaperOptions
from .paper_runs import SCALES, K, PaperScale, paper_runs, preparations
from .result_origin import origin_of, place_for, put_result, read_origin, write_origin
from .runs import Study, Trained
from .train_runs import check_data, done, train_all

TABLES = ("table1", "table2", "table3", "table4", "ablation", "curves")
VOCABULARY = {"owt": 50_257, "lm1b": 30_522, "lm1b-packed": 30_522}


@dataclass
class PaperStudy:
    """The chosen tables, the runs they need, and where all of it lies."""

    scale: PaperScale
    study: Study
    results: Path
    docs: Path
    options: PaperOptions
    tables: tuple[str, ...] = TABLES
    only: tuple[str, ...] = ()
    """Runs whose cells are wanted; none named: all."""
    cells: list[Cell] = field(init=False)
    runs: dict[str, Trained] = field(init=False)

    def __post_init__(self) -> None:
        o = self.options
        device = str(find_device(None))
        every = cells(self.scale, texts=o.texts, judge=o.judge, device=device)
        names = tuple(f"table {t[5:]}" if t.startswith("table") else t for t in self.tables)
        runs = paper_runs(self.scale)
        for name in self.only:
            if name not in runs:
                raise ArmdError(f"the paper's study has no run '{name}'; --plan lists them")
        self.cells = [
            cell
            for cell in every
            if cell.table.lower().startswith(names)
            and (not self.only or cell.measure.run in self.only)
        ]
        self.runs = needed(runs, {cell.measure.run for cell in self.cells})

    @property
    def measures(self) -> dict[str, Measure]:
        return {cell.measure.name: cell.measure for cell in self.cells}

    def command(self, measure: Measure) -> list[str]:
        """The words of `armd` that make a result file."""
        model = []
        if measure.run.startswith("hub:"):
            model = [measure.run[4:]]
        elif measure.run and measure.step:
            step = self.scale.steps(measure.step * K)
            model = [str(self.study.export(measure.run, step))]
        elif measure.run:
            model = [str(self.study.run(measure.run) / EXPORT)]
        return [*measure.before, *model, *measure.options, "--json", str(self.file(measure))]

    def file(self, measure: Measure) -> Path:
        return self.results / f"{measure.name}.json"


def needed(runs: dict[str, Trained], wanted: set[str]) -> dict[str, Trained]:
    """The wanted runs and those that they start from, in the order of the list."""
    names = wanted & runs.keys()
    names |= {runs[name].after for name in names} - {""}
    return {name: run for name, run in runs.items() if name in names}


def check_tables(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in (*TABLES, "page"):
            raise no_such("stage of the paper's study", name, (*TABLES, "page"))
    return tuple(name for name in TABLES if name in names) or TABLES


def reproduce_paper(
    names: list[str],
    *,
    scale: str,
    out: Path,
    results: Path,
    docs: Path,
    data: Path | None,
    only: tuple[str, ...],
    jobs: int,
    launch: str,
    plan: bool,
    options: PaperOptions,
) -> None:
    """The paper's tables `names`, or all of them; of the runs `only`, if some are named."""
    if options.gpu not in GPUS:
        raise ArmdError(f"no GPU '{options.gpu}'; use one of {', '.join(GPUS)}")
    if options.gpus < 1 or not 0 < options.utilisation <= 1 or not 0 <= options.dollars < 1e6:
        raise ArmdError(
            "--gpus must be at least 1, --utilisation in (0, 1], --dollars in [0, 1000000)"
        )
    tables = check_tables(names)
    chosen, folder = SCALES[scale], out / scale
    study = Study(chosen, folder, data or folder / "data")
    everything = PaperStudy(chosen, study, results / scale, docs, options)
    failed = {}
    if names != ["page"]:
        paper = replace(everything, tables=tables, only=only)
        check_data(study, list(paper.runs.values()))
        print(plan_of(paper))
        if plan or not options.yes:
            if not plan:
                print("nothing was started; --yes starts it")
            return
        if data is not None:
            check_prepared(paper)
        failed = walk(paper, prepared=data is not None, jobs=jobs, launch=launch)
    from .paper_page import write_paper_page

    print(write_paper_page(everything))
    if failed:
        lines = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise ArmdError(f"{len(failed)} parts of the study failed ({lines}); mend and run it again")


def check_prepared(paper: PaperStudy) -> None:
    """Raise, before anything is done, unless the datasets of all runs to come are there."""
    needed = {run.data for run in paper.runs.values() if not done(paper.study, run)}
    missing = sorted(name for name in needed if not (paper.study.data / name / MANIFEST).exists())
    if missing:
        raise ArmdError(
            f"{paper.study.data} has no dataset {', '.join(missing)}; of scale {paper.scale.name} "
            "--data is a folder of datasets, each made by armd prepare"
        )


def plan_of(paper: PaperStudy) -> str:
    """Every run with its steps, hours and cost, and every command that follows."""
    o = paper.options
    lines = [
        f"{len(paper.runs)} runs on {o.gpus} x {o.gpu} at {o.utilisation:.0%} of the peak, "
        f"{o.dollars:g} dollars a GPU-hour (assumptions: --gpus, --gpu, --utilisation, --dollars)",
        f"{'run':<32}{'steps':>10}{'tokens':>18}{'hours':>10}{'dollars':>10}",
    ]
    total = 0.0
    for run in paper.runs.values():
        hours = hours_of(run, o)
        steps = run.recipe.curriculum.total - run.after_step * run.with_state
        tokens = steps * run.recipe.optimizer.batch_size * run.recipe.network.length
        state = " done" if done(paper.study, run) else ""
        after = f" from {run.after}" + (f" at {run.after_step:,}" if run.after_step else "")
        lines.append(
            f"{run.name:<32}{steps:>10,}{tokens:>18,}{hours:>10.1f}"
            f"{hours * o.gpus * o.dollars:>10,.0f}{state}{after if run.after else ''}"
        )
        total += hours * (not state)
    lines.append(f"to train: {total:,.0f} hours, {total * o.gpus * o.dollars:,.0f} dollars")
    lines.append("the paper took 19 h (small) and 50 h (medium) for 100K steps on 8 (or 4) H100")
    lines.append(f"then {len(paper.measures)} commands:")
    for measure in paper.measures.values():
        lines.append("  " + shlex.join(["armd", *paper.command(measure)]))
    return "\n".join(lines)


def hours_of(run: Trained, o: PaperOptions) -> float:
    """By the arithmetic of forward and backward passes."""
    from ..bench.flops import train_flops

    recipe = run.recipe
    steps = recipe.curriculum.total - run.after_step * run.with_state
    config = recipe.config(VOCABULARY[run.data])
    tokens = steps * recipe.optimizer.batch_size * recipe.network.length
    flops = tokens * train_flops(config, recipe.network.length)
    return flops / (o.gpus * GPUS[o.gpu][0] * o.utilisation) / 3600


def walk(paper: PaperStudy, *, prepared: bool, jobs: int, launch: str) -> dict[str, str]:
    """Prepare, train, measure; what is there is not done again, and a failure stops nothing else.
    Returns what failed, and why."""
    from ..data.prepare import prepare

    if not prepared:
        for name, preparation in preparations(paper.scale, paper.study.data).items():
            if any(run.data == name for run in paper.runs.values()):
                prepare(preparation)
    failed = train_all(paper.study, list(paper.runs.values()), jobs=jobs, launch=launch)
    for measure in paper.measures.values():
        reason = failed.get(measure.run) or measured(paper, measure)
        if reason:
            failed[measure.name] = reason
    return failed


def measured(paper: PaperStudy, measure: Measure) -> str | None:
    """Make a result file, unless this very command made it from the same model, judge and texts;
    what went wrong, if it did."""
    from ..cli import run

    file, words = paper.file(measure), paper.command(measure)
    weights = Path(words[len(measure.before)]) / "model.safetensors"
    if measure.run[:4] not in ("", "hub:") and not weights.exists():
        return f"{weights.parent} is missing; train {measure.run} again with --keep-at"
    try:
        origin = origin_of(words, weights.parent if weights.exists() else None)
        if file.exists() and read_origin(file) == origin | {"done": True}:
            return None
        our_folder(file.parent)
        place = place_for(file, origin)
        print(origin["command"], flush=True)
        write_origin(place, origin, done=False)
        run([*words[:-1], str(place)])
        put_result(place, file, origin)
    except ArmdError as error:
        return str(error)
    except Exception as error:  # one command's failure must not lose the others
        return f"{type(error).__name__}: {error}"
    return None


def contents(paper: PaperStudy) -> dict[str, dict[str, Any]]:
    """The result files that are there, by measure."""
    found = {}
    for measure in paper.measures.values():
        if paper.file(measure).exists():
            try:
                found[measure.name] = json.loads(paper.file(measure).read_text("utf-8"))
            except ValueError:
                raise ArmdError(f"{paper.file(measure)} is damaged; remove it") from None
    return found
