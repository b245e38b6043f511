"""The page of the paper's tables: its figures, ours below them, and the command of each of ours."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ..eval import paper_tables as published
from ..plots.orders import pyplot_or_error, write_picture
from ..runtime.atomic_files import write_text
from ..runtime.atomic_folders import our_folder
from .paper_cells import Cell, Measure
from .paper_study import PaperStudy, contents
from .result_origin import mixed, read_origin
from .tables import markdown

NOT_RUN = "not run"
WORDS = """# The paper's tables, and ours

Written by `armd reproduce --scale {scale}`. The first line of a row is the paper's, the second
ours; a number in brackets is that of the command that made it, at the end. ± is one standard error,
≤ marks a bound. Rows of Table 3 end with the protocol that they belong to.
"""


def write_paper_page(paper: PaperStudy) -> Path:
    """docs/SCALE.md and its two figures."""
    found = contents(paper)
    made = {name: read_origin(paper.file(paper.measures[name])) for name in found}
    numbers = {name: number for number, name in enumerate(paper.measures, 1)}
    parts = [WORDS.format(scale=paper.scale.name)]
    for table in dict.fromkeys(cell.table for cell in paper.cells):
        chosen = [cell for cell in paper.cells if cell.table == table]
        parts.append(f"## {table}\n")
        if table.startswith("Curves"):
            image = f"images/{paper.scale.name}-{table.split()[-1]}.png"
            draw_curves(chosen, found, paper.docs / image)
            parts.append(f"![{table}: dashed the paper's, solid ours]({image})\n")
        parts.append(table_of(chosen, found, numbers) + "\n")
        shown = {cell.measure.name for cell in chosen if ours(cell, found) != NOT_RUN}
        origins = {numbers[name]: origin for name in shown if (origin := made.get(name))}
        parts += [f"{sentence}\n" for sentence in mixed(origins)]
    parts.append("## Commands\n")
    for name, measure in paper.measures.items():
        parts.append(f"{numbers[name]}. {made_by(paper, measure, name in found)}")
    page = paper.docs / f"{paper.scale.name}.md"
    paper.docs.mkdir(parents=True, exist_ok=True)
    write_text(page, "\n".join(parts) + "\n")
    return page


def made_by(paper: PaperStudy, measure: Measure, there: bool) -> str:
    """The command that made a result, whatever this call's options are."""
    file = paper.file(measure)
    origin = read_origin(file) if there else None
    if there and origin is None:
        return f"`{file}` does not say what made it"
    if origin is None:
        return f"{NOT_RUN}: `{shlex.join(['armd', *paper.command(measure)])}`"
    return f"`{origin['command']}`" + ("" if origin.get("done", True) else ", which did not end")


def ours(cell: Cell, found: dict[str, Any]) -> str:
    content = found.get(cell.measure.name)
    return (cell.read(content) if content else None) or NOT_RUN


def table_of(chosen: list[Cell], found: dict[str, Any], numbers: dict[str, int]) -> str:
    """Two lines for each row of the paper."""
    columns = list(dict.fromkeys(cell.column for cell in chosen))
    rows = []
    for name in dict.fromkeys(cell.row for cell in chosen):
        by_column = {cell.column: cell for cell in chosen if cell.row == name}
        used = sorted({numbers[cell.measure.name] for cell in by_column.values()})
        theirs = [by_column[c].published if c in by_column else "-" for c in columns]
        here = [ours(by_column[c], found) if c in by_column else "-" for c in columns]
        rows += [[name, *theirs], [f"here [{', '.join(map(str, used))}]", *here]]
    return markdown(["", *columns], rows)


def draw_curves(chosen: list[Cell], found: dict[str, Any], out: Path) -> None:
    """Perplexity against steps, a panel a data set; the paper's baselines stand at 400K."""
    pyplot = pyplot_or_error()
    small = chosen[0].table.endswith("small")
    baselines = published.TABLE_1_SMALL if small else published.TABLE_1_MEDIUM
    figure, axes = pyplot.subplots(1, len(published.TITLES), figsize=(15, 3.4))
    for index, (axis, column) in enumerate(zip(axes, published.TITLES, strict=True)):
        draw_lines(axis, [cell for cell in chosen if cell.column == column], found)
        for number, (name, scores) in enumerate(baselines.items()):
            if not name.startswith(("ARMD", "D3PM")):
                label = f"{name.split(' (')[0]} (the paper)"
                axis.plot(400, scores[index], marker="x^*Pdo"[number % 6], ls="", label=label)
        axis.set_title(column)
        axis.set_xlabel("thousands of steps")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    our_folder(out.parent)
    figure.tight_layout(rect=(0, 0.2, 1, 1))
    write_picture(figure, out, dpi=120)
    pyplot.close(figure)


def draw_lines(axis: Any, chosen: list[Cell], found: dict[str, Any]) -> None:
    """Of one data set: dashed the paper's, solid ours."""
    lines: dict[str, list[tuple[int, float, float | None]]] = {}
    for cell in chosen:
        line, _, step = cell.row.partition(" (")
        value = ours(cell, found)
        mine = None if value == NOT_RUN else float(value.split(" ±")[0].lstrip("≤ "))
        lines.setdefault(line, []).append((int(step[:-2]), float(cell.published), mine))
    for number, (line, points) in enumerate(lines.items()):
        axis.plot(
            *zip(*((s, t) for s, t, _ in points), strict=True),
            f"C{number}--",
            label=f"{line} (the paper)",
        )
        if there := [(step, mine) for step, _, mine in points if mine is not None]:
            axis.plot(*zip(*there, strict=True), f"C{number}o-", label=line)
