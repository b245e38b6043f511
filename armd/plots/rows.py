"""A picture of one pass with query="neighbor": the context rows, which of them are query rows too,
and the extra query rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .orders import BOS, INK, MASKED, cells, check_length, colour_of, frame, pyplot_or_error, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..model.order import Order

EXTRA = "#c2410c"


def plot_rows(*, out: Path, length: int = 8, streams: int = 2, rho: int = 4, seed: int = 3) -> None:
    """Draw the rows of a pass with the neighbor query: left to right, strided and shuffled.

    Args:
        out: Where to write the picture, as FILE.png (or .svg, .pdf).
        length: Tokens of the text.
        streams: Of the strided order.
        rho: How many places of the shuffled order are shuffled.
        seed: Of the shuffled order.
    """
    import torch

    from ..model import order as orders

    check_length(length, 128)
    pyplot, draw = pyplot_or_error(), torch.Generator().manual_seed(seed)
    shown = {
        "Left to right": orders.left_to_right(length),
        f"{streams} streams": orders.strided(length, streams),
        f"{rho} positions shuffled": orders.shuffled(length, rho, generator=draw),
    }
    figure, panels = pyplot.subplots(1, 3, figsize=(14, 6.4), layout="constrained")
    for axes, (title, order) in zip(panels, shown.items(), strict=True):
        draw_rows(axes, order, title)
    save(figure, out)
    pyplot.close(figure)


def draw_rows(axes: Axes, order: Order, title: str) -> None:
    """A line for each row: what it starts from, which context rows it sees, what it predicts."""
    from ..model.attention_inputs import block_limits
    from ..model.neighbor import extra_rows

    rows, n, position = order.rows(1), len(order), order.position.tolist()
    blocks = order.block.unique_consecutive(return_inverse=True)[1].tolist()
    extra = extra_rows(rows)
    starts = ["BOS", *(f"token {j}" for j in position[:-1])]
    sees = block_limits(rows)[1][0].tolist()
    source = list(range(n)) if extra is None else extra.source[0].tolist()
    if extra is not None:
        sees += extra.limit[0].tolist()
        for p, known in zip(extra.position[0].tolist(), extra.known[0].tolist(), strict=True):
            starts.append(("BOS" if p == 0 else f"token {p - 1}") if known else "unknown")
    predicts = {row: position[k] for k, row in enumerate(source)}
    colours = [BOS, *(colour_of(block, blocks[-1] + 1) for block in blocks[:-1])]
    seen = [[c if key < limit else MASKED for key, c in enumerate(colours)] for limit in sees]
    cells(axes, seen[:n])
    if seen[n:]:
        cells(axes, seen[n:], down=n + 0.4)
    for row in range(len(sees)):
        below = 0.4 if row >= n else 0.0
        if row in predicts:
            style = {"va": "center", "fontsize": 9, "color": EXTRA if row >= n else INK}
            axes.text(n + 0.2, row + below + 0.5, f"→ {predicts[row]}", **style)
    frame(axes, n + 1.6, len(sees) + 0.4, f"{title}: {n} context rows, {len(sees) - n} extra")
    axes.set_aspect("equal")
    axes.set_yticks(
        [row + 0.5 + (0.4 if row >= n else 0) for row in range(len(sees))], starts, color=INK
    )
    axes.set_xticks([key + 0.5 for key in range(n)], ["BOS", *map(str, position[:-1])])
    axes.set_xlabel("context row seen")
    axes.set_ylabel("row starts from")
