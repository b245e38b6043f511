"""`armd reproduce`: the paper's experiments in miniature or at their own size, resumable."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..errors import ArmdError, no_such
from .paper_options import PaperOptions
from .result_file import STAGES


def reproduce(
    stages: Annotated[list[str], tyro.conf.Positional] = [],  # noqa: B006
    /,
    *,
    scale: str = "mini",
    out: Path = Path("runs/reproduce"),
    results: Path = Path("results"),
    docs: Path = Path("docs"),
    data: Path | None = None,
    runs: tuple[str, ...] = (),
    seeds: int | None = None,
    jobs: int | None = None,
    launch: str = "",
    plan: Annotated[bool, tyro.conf.arg(aliases=["--dry-run"])] = False,
    paper: Annotated[PaperOptions, tyro.conf.arg(name="")] = PaperOptions(),  # noqa: B008
) -> None:
    """Train every model of the study, measure, and write docs/results.md. Stopped, the same command
    goes on where it was.

    Args:
        stages: perplexity, generation, price, latency, ablations; of scale paper table1, table2,
            table3, table4, ablation, curves; none named: all of them. "page" writes the page anew
            from the results that are there.
        scale: mini (an hour and a half on two cores); paper (every run of the paper's tables at its
            own size, for a cluster; prints a plan with hours and cost, and starts with --yes); tiny
            or paper-tiny (trials of the two studies).
        out: Where the dataset, the runs and their logs go.
        results: Where the figures go, one JSON file a stage.
        docs: Where results.md and its images go.
        data: A dataset that armd prepare made, instead of the scale's own; of scale paper a folder
            of datasets: owt, lm1b, lm1b-packed.
        runs: Train and measure only these runs, each with all its seeds; figures of others stay as
            they are in the results. Of perplexity, price, ablations and of scale paper.
        seeds: Seeds of the runs that have several (our models and AR); the scale's own number: 3.
        jobs: Runs that train side by side, each on its share of the cores.
        launch: How to start a run instead of `armd`, such as "torchrun --nproc-per-node 8 -m
            armd.cli".
        plan: Only list the runs, of scale paper also the commands, hours and cost.
        paper: Of scale paper.
    """
    from ..data.dataset import open_dataset
    from .runs import Study
    from .scale import scale as scale_of

    if jobs is not None and jobs < 1:
        raise ArmdError(f"--jobs {jobs} must be at least 1")
    if seeds is not None and seeds < 1:
        raise ArmdError(f"--seeds {seeds} must be at least 1")
    if scale in ("paper", "paper-tiny"):
        if seeds:
            raise ArmdError("--seeds is of scale mini; the paper's runs have one seed each")
        from .paper_study import reproduce_paper

        places = {"out": out, "results": results, "docs": docs, "data": data}
        how = {"jobs": jobs or 1, "launch": launch, "plan": plan, "options": paper}
        return reproduce_paper(stages, scale=scale, only=runs, **places, **how)
    chosen, wanted = scale_of(scale), check_stages(stages)
    chosen = replace(chosen, seeds=tuple(range(seeds))) if seeds else chosen
    study = Study(chosen, out, data or out / "data", check_runs(runs, chosen, wanted))
    if data is not None and wanted:
        open_dataset(data)  # of each run the trainer would say what is wrong with it
    if plan:
        return show_plan(study, wanted)
    failed: dict[str, str] = {}
    for folder in (results, docs):  # hours before they are written to
        folder.mkdir(parents=True, exist_ok=True)
    if wanted:
        if data is None:
            prepare_data(study)
        failed = train_wanted(study, wanted, jobs=jobs or chosen.jobs, launch=launch)
    for stage in wanted:
        needed = study.chosen(runs_of(stage)(chosen))
        missing = [run.name for run in needed if run.name in failed]
        if missing:
            failed[stage] = f"needs {', '.join(missing)}"
            continue
        failed |= measure_stage(study, stage, scale, results)
    from .results_page import write_page

    write_page(results, docs)
    if failed:
        lines = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise ArmdError(f"{len(failed)} parts of the study failed ({lines}); mend and run it again")


def check_stages(stages: list[str]) -> list[str]:
    for name in stages:
        if name not in (*STAGES, "page"):
            raise no_such("stage", name, (*STAGES, "page"))
    return [name for name in STAGES if name in stages or not stages]


def check_runs(runs: tuple[str, ...], scale: Any, stages: list[str]) -> tuple[str, ...]:
    """The runs as given, if the stages have them, and if they need no others to be measured."""
    for stage in stages if runs else []:
        if stage == "generation":
            raise ArmdError("stage generation compares all its runs; leave out --runs")
    known = {run.name for stage in stages for run in runs_of(stage)(scale)}
    known = {name for name in known if "-seed" not in name}  # which go with their runs
    for name in runs:
        if name not in known:
            raise no_such(f"run of {', '.join(stages)}", name, known, "see --plan")
    return runs


def prepare_data(study: Any) -> None:
    from ..data.prepare import Preparation, prepare

    prepare(Preparation(study.scale.source, tokenizer=study.scale.tokenizer, out=study.data))


def runs_of(stage: str) -> Callable[[Any], list[Any]]:
    from . import runs

    return {
        "perplexity": runs.perplexity_runs,
        "generation": runs.generation_runs,
        "price": runs.price_runs,
        "ablations": runs.ablation_runs,
    }.get(stage, lambda scale: [])


def wanted_runs(study: Any, stages: list[str]) -> list[Any]:
    """Every run that the stages need, once; runs of other seeds last."""
    known = {run.name: run for stage in stages for run in runs_of(stage)(study.scale)}
    found = {run.name: run for run in study.chosen(list(known.values()))}
    found = {run.after: known[run.after] for run in found.values() if run.after} | found
    return sorted(found.values(), key=lambda run: run.recipe.seed)


def train_wanted(study: Any, stages: list[str], *, jobs: int, launch: str) -> dict[str, str]:
    from .train_runs import train_all

    return train_all(study, wanted_runs(study, stages), jobs=jobs, launch=launch)


PLACES = ("--out", "--results", "--docs")


def without_places(words: list[str]) -> str:
    """The command as another person gives it: figures do not depend on where folders lie."""
    kept, rest = [], iter(words)
    for word in rest:
        if word in PLACES:
            next(rest, None)
        elif word.partition("=")[0] not in PLACES:
            kept.append(word)
    return shlex.join(kept)


def measure_stage(study: Any, stage: str, scale: str, results: Path) -> dict[str, str]:
    """One stage; what fails is reported at the end and hides no other stage."""
    from importlib import import_module

    from .result_file import Findings

    print(f"{stage}:", flush=True)
    command = without_places(["armd", *sys.argv[1:]])
    try:
        findings = Findings(results, stage, scale, command)
        import_module(f".{stage}", __package__).measure(study, findings)
    except (ArmdError, OSError) as error:
        return {stage: str(error)}
    except Exception as error:
        traceback.print_exc()
        return {stage: f"{type(error).__name__}: {error}"}
    return {}


def show_plan(study: Any, stages: list[str]) -> None:
    from .train_runs import check_data, done

    wanted = wanted_runs(study, stages)
    check_data(study, wanted)
    for run in wanted:
        recipe = run.recipe
        tokens = recipe.curriculum.total * recipe.optimizer.batch_size * recipe.network.length
        state = "done" if done(study, run) else "to train"
        start = f", from {run.after}" if run.after else ""
        print(
            f"{run.name:<28}{recipe.curriculum.total:>8,} steps{tokens:>14,} tokens  {state}{start}"
        )
