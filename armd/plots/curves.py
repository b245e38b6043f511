"""`armd plot RUN...`: the curves of several runs together, as in the paper's figures."""

from math import exp
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..errors import ArmdError

_MARKS = "os^Dvp*X"


def plot_curves(
    runs: Annotated[list[Path], tyro.conf.Positional],
    *,
    out: Path = Path("curves.png"),
    smooth: int = 10,
    json: Path | None = None,
) -> None:
    """Draw training loss and held-out perplexity against steps.

    Args:
        runs: Folders of runs.
        out: The picture to write: .png, .svg or .pdf.
        smooth: Training losses averaged to a point.
        json: Write the curves to this file.
    """
    curves = {run.name or str(run): read_curves(run, smooth=smooth) for run in runs}
    if not curves:
        raise ArmdError("name at least one run: armd plot RUN...")
    draw(curves, out)
    print(out)
    if json:
        import json as json_format

        json.write_text(json_format.dumps(curves, indent=2) + "\n")


def read_curves(run: Path, *, smooth: int) -> dict[str, list[tuple[int, float]]]:
    """Points (step, value): "loss", and one held-out perplexity for each kind of order."""
    from ..train.run_folder import read_metrics

    rows = read_metrics(run)
    if not rows:
        raise ArmdError(f"{run} has no metrics.jsonl to draw; is it the folder of a run?")
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    curves: dict[str, list[tuple[int, float]]] = {"loss": []}
    for start in range(0, len(losses), max(1, smooth)):
        part = losses[start : start + max(1, smooth)]
        curves["loss"].append((part[-1][0], sum(loss for _, loss in part) / len(part)))
    for row in rows:
        for name, loss in row.get("heldout", {}).items():
            curves.setdefault(name, []).append((row["step"], exp(min(loss, 80.0))))
    return curves


def draw(curves: dict[str, dict[str, list[tuple[int, float]]]], out: Path) -> None:
    """One panel for each curve that any run has; the runs share colours and marks."""
    try:
        import matplotlib
    except ImportError:
        raise ArmdError("plots need matplotlib: pip install 'armd[plots]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for run in curves.values() for name in run))
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(3.2 * len(names), 3.0), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], names, strict=True):
        _panel(axis, name, curves)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    try:
        figure.savefig(out, dpi=160)
    except (OSError, ValueError) as error:
        raise ArmdError(f"cannot write {out}: {error}") from None
    pyplot.close(figure)


def _panel(axis: Any, name: str, curves: dict[str, dict[str, list[tuple[int, float]]]]) -> None:
    for index, (run, parts) in enumerate(curves.items()):
        points = parts.get(name, [])
        mark = "" if name == "loss" else _MARKS[index % len(_MARKS)]
        axis.plot(
            [step / 1000 for step, _ in points],
            [value for _, value in points],
            marker=mark,
            markersize=4,
            linewidth=1.2,
            label=run,
        )
    axis.set_title("training loss" if name == "loss" else f"held out, {name}", fontsize=9)
    axis.set_xlabel("Iterations (K)", fontsize=8)
    axis.set_ylabel("nats per token" if name == "loss" else "PPL", fontsize=8)
    if name != "loss" and any(parts.get(name) for parts in curves.values()):
        axis.set_yscale("log")
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
