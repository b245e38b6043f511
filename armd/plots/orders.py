"""Pictures of orders, as the paper draws them: the masking process, the permuted sequence with its
blocks, and the strict mask."""

from __future__ import annotations

import os
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ArmdError
from ..runtime.atomic_files import write_bytes
from ..runtime.numbers import whole_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..model.order import Order

FORMATS = (".png", ".svg", ".pdf")
LONGEST = 2048
"""Tokens of a picture; of more, nothing could be told apart."""
Kind = Literal["left-to-right", "shuffled", "random", "strided", "masking", "infill"]
COLOURS = ["#f6b44b", "#f0806a", "#d679b8", "#8b8ae0", "#57a5e0", "#4cc3a5"]
MASKED, EDGE, BOS, INK = "#e8e8ec", "#ffffff", "#8a8f98", "#22252b"


def plot_order(
    kind: Kind = "strided",
    *,
    out: Path,
    length: int = 8,
    streams: int = 2,
    rho: int = 4,
    steps: int = 4,
    schedule: Literal["linear", "cosine"] = "linear",
    known: str = "",
    seed: int = 0,
) -> None:
    """Draw an order: which positions are masked at each step, the permuted sequence, its mask.

    Args:
        kind: Which order.
        out: Where to write the picture, as FILE.png (or .svg, .pdf).
        length: Tokens of the text.
        streams: How many runs are written side by side (strided, infill).
        rho: How many places are shuffled (shuffled).
        steps: Steps of the masking process (masking).
        schedule: Its noise schedule (masking).
        known: Positions that are given, such as 0,1,5 (infill); every third if left out.
        seed: Of the random kinds.
    """
    from ..model import order as orders

    check_length(length)
    pyplot = pyplot_or_error()
    import torch

    generator = torch.Generator().manual_seed(seed)
    order = orders.named(
        kind,
        length,
        streams=streams,
        steps=steps,
        rho=rho,
        schedule=schedule,
        known=_known(known, length) if kind == "infill" else None,
        generator=generator,
    )
    figure = draw(order, title=f"{kind.replace('-', ' ')}, {length} tokens")
    save(figure, out)
    pyplot.close(figure)


def plot_idea(*, out: Path, length: int = 8) -> None:
    """Draw the idea: left to right, strided streams and masked diffusion are all orders.

    Args:
        out: Where to write the picture.
        length: Tokens of the text.
    """
    from ..model import order as orders

    check_length(length)
    pyplot = pyplot_or_error()
    import torch

    shown = {
        "Left to right: a GPT": orders.left_to_right(length),
        "Two streams side by side": orders.strided(length, 2),
        "Masked diffusion in 4 steps": orders.masking(
            length, 4, generator=torch.Generator().manual_seed(0)
        ),
    }
    figure = pyplot.figure(figsize=(13.5, 9.2), layout="constrained")
    for part, (title, order) in zip(
        figure.subfigures(1, 3, wspace=0.04), shown.items(), strict=True
    ):
        process, sequence, mask = part.subplots(3, 1, height_ratios=[len(order), 1.6, length + 1])
        _draw_process(process, order)
        _draw_sequence(sequence, order)
        _draw_mask(mask, order)
        part.suptitle(title, fontsize=15, fontweight="bold", color=INK)
    save(figure, out)
    pyplot.close(figure)


def check_length(length: int, most: int = LONGEST) -> None:
    if not 0 < length <= most:
        raise ArmdError(f"--length {length} is not what a picture shows; give 1 to {most}")


def draw(order: Order, *, title: str = "") -> Any:
    """The three panels of one order, as a matplotlib figure."""
    pyplot = pyplot_or_error()
    steps, n = len(order.blocks()), len(order)
    height = max(4.2, min(9.0, 2.6 + 0.3 * max(steps, n)))
    figure = pyplot.figure(figsize=(2.1 * height, height), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.1, 1])
    process, sequence = left.subplots(2, 1, height_ratios=[max(steps, 3), max(1.5, n / 10)])
    _draw_process(process, order)
    _draw_sequence(sequence, order)
    _draw_mask(right.subplots(), order)
    figure.suptitle(title, fontsize=15, fontweight="bold", color=INK)
    return figure


def _draw_process(axes: Axes, order: Order) -> None:
    """Row t: what is written after t blocks; a position takes its block's colour once drawn."""
    blocks, n = order.blocks(), len(order)
    rank = {j: b for b, block in enumerate(blocks) for j in block}
    colours = [colour_of(rank[j], len(blocks)) for j in range(n)]
    steps = range(len(blocks) + 1)
    shown = [[colours[j] if rank[j] < step else MASKED for j in range(n)] for step in steps]
    cells(axes, shown, edges=len(blocks) < 128)
    for j in range(n if n <= 32 else 0):
        label(axes, j, rank[j] + 1, str(j), n, bold=True)
    frame(axes, n, len(blocks) + 1, "which positions are still masked")
    axes.set_xlabel("position in the text")
    axes.set_ylabel("model calls made")
    _ticks(axes, n, len(blocks) + 1)


def _draw_sequence(axes: Axes, order: Order) -> None:
    """The tokens as they are generated, blocks apart from each other. Below, those for which the
    neighbor query needs a row of its own."""
    from ..model.neighbor import needs_extra_row

    blocks, n = order.blocks(), len(order)
    extra = set(order.position[needs_extra_row(order)[0]].tolist())
    gap, x = 0.35, 0.0
    for b, block in enumerate(blocks):
        for j in block:
            cell(axes, x, 0, colour_of(b, len(blocks)))
            if n <= 64:
                label(axes, x, 0, str(j), n)
            if j in extra:
                axes.plot(x + 0.5, 1.14, marker="^", color=INK, markersize=4, clip_on=False)
            x += 1
        x += gap
    frame(axes, x - gap, 1, "the permuted sequence: positions, block by block (▴ extra query row)")
    axes.set_xticks([])
    axes.set_yticks([])


def _draw_mask(axes: Axes, order: Order) -> None:
    """M^sc: row n sees column i where B(i) < B(n). The first column is BOS, which all rows see."""
    blocks, n = order.blocks(), len(order)
    position = order.position.tolist()
    rank = [b for b, block in enumerate(blocks) for _ in block]
    colours = [colour_of(b, len(blocks)) for b in rank]
    seen = [[c if b < own else MASKED for b, c in zip(rank, colours, strict=True)] for own in rank]
    cells(axes, [[BOS, *row] for row in seen], edges=n <= 128)
    for b in range(len(blocks)):  # the block itself, which it does not see
        first, size = rank.index(b), rank.count(b)
        _outline(axes, first, size, colour_of(b, len(blocks)))
    frame(axes, n + 1, n, "the strict mask: a token sees earlier blocks only")
    axes.set_aspect("equal")
    every = _every(n)
    axes.set_xticks(
        [0.5, *(c + 1.5 for c in range(0, n, every))], ["BOS", *map(str, position[::every])]
    )
    axes.set_yticks([r + 0.5 for r in range(0, n, every)], [str(j) for j in position[::every]])
    axes.tick_params(axis="x", labelrotation=90 if n > 12 else 0)
    axes.set_xlabel("token seen")
    axes.set_ylabel("token predicted")


def cells(axes: Axes, colours: list[list[Any]], *, down: float = 0.0, edges: bool = True) -> None:
    """A table of cells, drawn at once: one by one, a thousand tokens take minutes."""
    import numpy
    from matplotlib.colors import to_rgba

    shown = numpy.array([[to_rgba(colour) for colour in row] for row in colours])
    across, rows = numpy.arange(shown.shape[1] + 1), down + numpy.arange(len(shown) + 1)
    line = 0.8 if edges else 0.0
    axes.pcolormesh(across, rows, shown, edgecolors=EDGE, linewidth=line)


def cell(axes: Axes, x: float, y: float, colour: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor=EDGE, linewidth=0.8))


def _outline(axes: Axes, first: int, size: int, colour: Any) -> None:
    from matplotlib.patches import Rectangle

    inset, side = (first + 1.08, first + 0.08), size - 0.16
    axes.add_patch(Rectangle(inset, side, side, fill=False, edgecolor=colour, linewidth=1.8))


def label(axes: Axes, x: float, y: float, text: str, n: int, *, bold: bool = False) -> None:
    size = 11 if n <= 12 else 9 if n <= 20 else 7 if n <= 32 else 5
    weight = "bold" if bold else "normal"
    style: dict[str, Any] = {"fontsize": size, "fontweight": weight, "color": INK}
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", **style)


@cache
def colour_of(block: int, blocks: int) -> Any:
    """One colour a block, the same in every panel, from early (warm) to late (cool)."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("blocks", COLOURS)(block / max(1, blocks - 1))


def _every(n: int) -> int:
    return 1 if n <= 20 else 2 if n <= 40 else 4 if n <= 80 else max(1, n // 16)


def _ticks(axes: Axes, columns: int, rows: int) -> None:
    every, down = _every(columns), _every(rows)
    axes.set_xticks(
        [c + 0.5 for c in range(0, columns, every)], [*map(str, range(0, columns, every))]
    )
    axes.set_yticks([r + 0.5 for r in range(0, rows, down)], [*map(str, range(0, rows, down))])


def frame(axes: Axes, width: float, height: float, title: str) -> None:
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_title(title, fontsize=11, color=INK, pad=8)
    axes.tick_params(length=0, labelsize=8, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)


def _known(text: str, length: int) -> Any:
    """The positions named in "0,1,5" as a bool tensor."""
    import torch

    known = torch.zeros(length, dtype=torch.bool)
    if not text:
        known[::3] = True
        return known
    for word in text.split(","):
        place = whole_number(word, 0, length - 1)
        if place is None:
            raise ArmdError(
                f"known '{word[:40]}' is no position of 0..{length - 1}; write them as 0,1,5"
            )
        known[place] = True
    return known


def pyplot_or_error() -> Any:
    os.environ["MPLBACKEND"] = "agg"  # a notebook's own may be unknown here, and end the import
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ArmdError("pictures need matplotlib; pip install 'armd[plots]'") from None
    except UnicodeDecodeError as error:
        raise ArmdError(f"matplotlib cannot read a matplotlibrc or .mplstyle: {error}") from None
    pyplot.rcdefaults()  # not what a matplotlibrc says, such as usetex, for which TeX must be there
    pyplot.switch_backend("agg")
    return pyplot


def write_picture(figure: Any, out: Path, **options: Any) -> None:
    """In place of what is there, at once; matplotlib itself would write through a link."""
    if out.suffix.lower() not in FORMATS:
        raise ValueError(f"a picture ends in {', '.join(FORMATS)}")
    drawn = BytesIO()
    figure.savefig(drawn, format=out.suffix[1:], **options)
    write_bytes(out, drawn.getvalue())


def save(figure: Any, out: Path) -> None:
    try:
        write_picture(figure, out, dpi=150, facecolor="white")
    except (OSError, ValueError) as error:
        raise ArmdError(f"cannot write {out} ({error}); name a .png in a folder there is") from None
    print(f"wrote {out}")
