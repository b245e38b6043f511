"""The study's plots."""

from __future__ import annotations

import re
from math import exp
from pathlib import Path
from typing import Any

from ..plots.orders import pyplot_or_error, write_picture
from ..runtime.atomic_folders import our_folder
from .tables import LABELS, Entries, perplexity_of

OURS, EXACT, BOUND = "#c2410c", "#1d4ed8", "#94a3b8"


def draw_all(found: dict[str, Entries], folder: Path) -> None:
    """Every figure for which there are results, in `folder`."""
    pyplot = pyplot_or_error()
    our_folder(folder)
    pyplot.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    drawings = {
        "perplexity": (perplexity_figure, (6.4, 3.2)),
        "generation": (generation_figure, (7.2, 3.4)),
        "price": (price_figure, (6.4, 3.2)),
        "latency": (latency_figure, (6.4, 2.8)),
    }
    for stage, (drawing, size) in drawings.items():
        if found.get(stage):
            save(pyplot, drawing, found[stage], size, folder / f"results-{stage}.png")
    if found.get("perplexity"):
        save(pyplot, curves_figure, found["perplexity"], (7.2, 3.4), folder / "results-curves.png")


def save(pyplot: Any, drawing: Any, entries: Entries, size: tuple[float, float], out: Path) -> None:
    figure = pyplot.figure(figsize=size, layout="constrained")
    drawing(figure, entries)
    write_picture(figure, out, dpi=160)
    pyplot.close(figure)


def colour(name: str, figures: dict[str, Any]) -> str:
    if name.startswith("armd"):
        return OURS
    return BOUND if "bound" in figures else EXACT


def perplexity_figure(figure: Any, entries: Entries) -> None:
    """Held-out perplexity of every model, the best at the top."""
    axis = figure.subplots()
    names = sorted(
        (name for name in LABELS if name in entries),
        key=lambda name: -perplexity_of(entries, name),
    )
    values = [perplexity_of(entries, name) for name in names]
    colours = [colour(name, entries[name]["figures"]) for name in names]
    bars = axis.barh([LABELS[name] for name in names], values, color=colours, height=0.7)
    axis.bar_label(bars, [f"{value:.1f}" for value in values], padding=3)
    axis.set_xlabel("held-out perplexity (orange: ours, blue: exact, grey: upper bound)")
    axis.margins(x=0.12)


def curves_figure(figure: Any, entries: Entries) -> None:
    """Held-out perplexity while training, against steps and against arithmetic."""
    axes = figure.subplots(1, 2, sharey=True)
    for name in (name for name in LABELS if name in entries):
        figures, facts = entries[name]["figures"], entries[name]["facts"]
        a_step = figures["train_flops_a_token"] * facts["batch"] * facts["length"]
        steps = [step for step, _ in figures["curve"]]
        values = [exp(nats) for _, nats in figures["curve"]]
        ours = name.startswith("armd")
        style = {"linewidth": 2.2 if ours else 1.1, "linestyle": "--" if "third" in name else "-"}
        if ours:
            style["color"] = OURS
        axes[0].plot(steps, values, label=LABELS[name], **style)
        axes[1].plot([step * a_step / 1e12 for step in steps], values, **style)
    for axis, label in zip(axes, ("steps", "training TFLOPs"), strict=True):
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.grid(alpha=0.25, which="both")
    axes[0].set_ylabel("held-out perplexity or its bound")
    figure.legend(loc="outside right upper", frameon=False)


def generation_figure(figure: Any, entries: Entries) -> None:
    """Perplexity under each judge against passes of the model, all at equal entropy."""
    judges = [
        j for j in ("large", "own") if any(f"{j}_perplexity" in f for f in figures_of(entries))
    ]
    axes = figure.subplots(1, len(judges), squeeze=False)[0]
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, entry in entries.items():
        if "calls" in entry["figures"]:
            groups.setdefault(re.sub(r" [ST]=\d+$", "", name), []).append(entry["figures"])
    for axis, judge in zip(axes, judges, strict=True):
        key, title = f"{judge}_perplexity", {"large": "SmolLM2-135M", "own": "own AR judge"}[judge]
        for name, points in groups.items():
            points = sorted((f for f in points if key in f), key=lambda f: f["calls"])
            ours = name.startswith(("armd", "sbp"))
            axis.errorbar(
                [f["calls"] for f in points],
                [f[key] for f in points],
                yerr=[f[key] * f[f"{judge}_error"] for f in points],
                marker="o" if ours else "s",
                markersize=4,
                linewidth=2 if name == "sbp-20" else 1,
                label=name,
            )
        axis.axhline(entries["real text"]["figures"][key], color="black", linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(f"read by {title}; dotted: real text")
        axis.set_xlabel("passes of the model for a text")
        axis.grid(alpha=0.25, which="both")
    axes[0].set_ylabel("generative perplexity, equal entropy")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)


def figures_of(entries: Entries) -> list[dict[str, Any]]:
    return [entry["figures"] for entry in entries.values()]


def price_figure(figure: Any, entries: Entries) -> None:
    """Nats per token above left to right: the order's share, and on top of it independence's."""
    axis = figure.subplots()
    names = list(entries)
    streams = sorted(int(k[2:]) for k in entries[names[0]]["figures"] if re.fullmatch(r"S=\d+", k))
    width = 0.8 / len(streams)
    for index, s in enumerate(streams):
        places = [i + (index - (len(streams) - 1) / 2) * width for i in range(len(names))]
        figures = [entries[name]["figures"] for name in names]
        order = [f[f"S={s} one by one"] - f["left to right"] for f in figures]
        apart = [f[f"S={s}"] - f[f"S={s} one by one"] for f in figures]
        shade = 0.35 + 0.65 * (index + 1) / len(streams)
        axis.bar(places, order, width * 0.92, color=EXACT, alpha=shade, label=f"order, S={s}")
        axis.bar(
            places, apart, width * 0.92, bottom=order, color=OURS, alpha=shade,
            label="independence" if index == len(streams) - 1 else None,
        )  # fmt: skip
    axis.set_xticks(range(len(names)), names)
    axis.set_ylabel("nats per token above left to right")
    axis.grid(alpha=0.25, axis="y")
    figure.legend(loc="outside upper center", frameon=False, ncols=5)


def latency_figure(figure: Any, entries: Entries) -> None:
    """Training time against L2s, decoding speed against S."""
    axes = figure.subplots(1, 2)
    if "training" in entries:
        times = entries["training"]["figures"]
        ratios = [t["best"] / times["AR"]["best"] for t in times.values()]
        bars = axes[0].bar(list(times), ratios, color=[EXACT, *[OURS] * (len(ratios) - 1)])
        axes[0].bar_label(bars, [f"{r:.2f}" for r in ratios])
        axes[0].set_ylabel("time of a training step over AR's")
    if "decoding" in entries:
        times = entries["decoding"]["figures"]
        speeds = [times["S=1"]["best"] / t["best"] for t in times.values()]
        bars = axes[1].bar(list(times), speeds, color=[EXACT, *[OURS] * (len(speeds) - 1)])
        axes[1].bar_label(bars, [f"{s:.2f}" for s in speeds])
        axes[1].set_ylabel("decoding speed over S=1's")
