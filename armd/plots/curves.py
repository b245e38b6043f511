"""`armd plot RUN...`: the curves of several runs together, as in the paper's figures."""

from math import exp
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..errors import ArmdError
from ..runtime.atomic_files import write_figures
from .orders import pyplot_or_error, write_picture

_MARKS = "os^Dvp*X"
COLUMNS, MOST_PANELS = 3, 60
Points = list[tuple[int, float]]
Runs = dict[str, dict[str, Points]]
"""run -> curve -> its points: (step, value)."""


def plot_curves(
    runs: Annotated[list[Path], tyro.conf.Positional],
    *,
    out: Path = Path("curves.png"),
    smooth: int = 10,
    json: Path | None = None,
) -> None:
    """Draw training loss and held-out perplexity against steps: the first held-out curve of all
    runs in one panel, others behind it.

    Args:
        runs: Folders of runs.
        out: The picture to write: .png, .svg or .pdf.
        smooth: Training losses averaged to a point.
        json: Write the curves to this file.
    """
    if json is not None and json.absolute() == out.absolute():
        raise ArmdError(f"--out and --json are both {out}; give each a name of its own")
    if smooth < 1:
        raise ArmdError(f"--smooth {smooth} must be at least 1")
    curves = {name: read_curves(run, smooth=smooth) for name, run in named(runs).items()}
    if not curves:
        raise ArmdError("name at least one run: armd plot RUN...")
    draw(curves, out)
    print(out)
    if json:
        write_figures(json, curves)


def named(runs: list[Path]) -> dict[str, Path]:
    """The runs by their folders' names, or by their paths where two have one name."""
    names = [run.resolve().name for run in runs]
    return {n if names.count(n) == 1 else str(r): r for n, r in zip(names, runs, strict=True)}


def read_curves(run: Path, *, smooth: int) -> dict[str, Points]:
    """Points (step, value): "loss", and one held-out perplexity for each kind of order."""
    from ..train.run_folder import read_metrics

    rows = read_metrics(run)
    if not rows:
        raise ArmdError(f"{run} has no metrics.jsonl to draw; is it the folder of a run?")
    try:
        return curves_of(rows, smooth)
    except (AttributeError, TypeError, OverflowError):
        raise ArmdError(f"{run}/metrics.jsonl has losses that are no numbers; mend it") from None


def curves_of(rows: list[dict[str, Any]], smooth: int) -> dict[str, Points]:
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    curves: dict[str, Points] = {"loss": []}
    for start in range(0, len(losses), smooth):
        part = losses[start : start + smooth]
        curves["loss"].append((part[-1][0], sum(loss for _, loss in part) / len(part)))
    for row in rows:
        for name, loss in row.get("heldout", {}).items():
            curves.setdefault(name, []).append((row["step"], exp(min(loss, 80.0))))
    return curves


def panels_of(curves: Runs) -> dict[str, dict[str, tuple[str, Points]]]:
    """What each panel shows: its title, then for each run the name of its curve and the points.
    Models name their held-out curves by what they measure (an order, a bound), so the first of
    each run share a panel, whatever their names; the others have one for each name."""
    first = {run: next((n for n in parts if n != "loss"), "") for run, parts in curves.items()}
    panels = {"training loss": {run: ("", parts["loss"]) for run, parts in curves.items()}}
    if any(first.values()):
        shared = {run: (name, curves[run][name]) for run, name in first.items() if name}
        panels["held out"] = shared
    rest = dict.fromkeys(name for run in curves.values() for name in run)
    for name in rest:
        runs = {run: ("", parts[name]) for run, parts in curves.items() if name in parts}
        if name != "loss" and any(name != first[run] for run in runs):
            panels[f"held out, {name}"] = runs
    return panels


def draw(curves: Runs, out: Path) -> None:
    """The panels in rows of three, as wide as a page; the runs share colours and marks."""
    pyplot = pyplot_or_error()
    panels = panels_of(curves)
    if len(panels) > MOST_PANELS:
        raise ArmdError(
            f"{len(panels):,} curves are more than a picture's {MOST_PANELS}; is metrics.jsonl "
            "damaged? armd verify RUN tells"
        )
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(3.2 * columns, 2.6 * rows), squeeze=False, layout="constrained"
    )
    axes = [axis for row in grid for axis in row]
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (title, runs) in zip(axes, panels.items(), strict=False):
        _panel(axis, title, runs, list(curves))
    handles, labels = axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a folder's name is no formula
    try:
        write_picture(figure, out, dpi=160)
    except (OSError, ValueError) as error:
        raise ArmdError(f"cannot write {out}: {error}") from None
    pyplot.close(figure)


def _panel(axis: Any, title: str, runs: dict[str, tuple[str, Points]], names: list[str]) -> None:
    loss = title == "training loss"
    for run, (curve, points) in runs.items():
        index = names.index(run)
        axis.plot(
            [step / 1000 for step, _ in points],
            [value for _, value in points],
            color=f"C{index % 10}",
            marker="" if loss else _MARKS[index % len(_MARKS)],
            markersize=4,
            linewidth=1.2,
            label=f" {run}" if run.startswith("_") else run,  # matplotlib hides such names
        )
        if curve and points:  # which of a model's measures it is
            axis.annotate(f" {curve}", (points[-1][0] / 1000, points[-1][1]), fontsize=6)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("Iterations (K)", fontsize=8)
    axis.set_ylabel("nats per token" if loss else "PPL", fontsize=8)
    if not loss:
        axis.set_yscale("log")
        for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            formatter("{x:g}")
    axis.tick_params(labelsize=7, which="both")
    axis.grid(alpha=0.3)
