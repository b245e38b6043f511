"""`armd report`: the paper's tables and curves with ours, as Markdown and one HTML page."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import Any

import tyro

from . import paper_tables as paper
from .result_files import Findings, collect
from .tables import NOT_RUN, Origins, Table, tables

LEGEND = (
    "≤ marks a bound. Rows that begin with 'ours' were measured here, and end with the number of "
    "the command that made them; the others are the paper's."
)
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ccc}
th,td:not(:first-child){white-space:nowrap}
th:first-child,td:first-child{text-align:left}
tr.ours{font-weight:bold}.note{color:#555;font-size:.85rem;word-break:break-word}
pre{white-space:pre-wrap;background:#f4f4f4;padding:.7rem}code{color:#222}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(26rem,100%),1fr));gap:1rem}
figure{margin:0}figcaption{font-size:.9rem}svg{width:100%;height:auto}sup{font-weight:normal}"""
COLOURS = ("#1b6ca8", "#c0392b", "#2e7d32", "#8e44ad", "#b9770e", "#555")
WIDE, HIGH, EDGE, TICKS = 520, 260, 44, 4


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    /,
    *,
    out: Path = Path("report"),
) -> None:
    """The paper's tables with our figures beside its own.

    Args:
        runs: Result files written with --json, and folders that hold them or training runs.
        out: Folder for report.md and report.html.
    """
    found = collect(list(runs))
    origins = Origins()
    made, curves = tables(found, origins), figures(found)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(markdown(made, origins, found), "utf-8")
    (out / "report.html").write_text(page(made, origins, curves, found), "utf-8")
    missing = [table.title for table in made if any(NOT_RUN in row for row in table.rows)]
    print(f"{out / 'report.md'} and {out / 'report.html'}: {len(made)} tables")
    if missing:
        print(f"with figures not run: {'; '.join(missing)}")


def examples(found: Findings) -> list[tuple[str, str]]:
    """Some of the generated texts, with where they come from."""
    named = []
    for result in found.samples:
        name = result.get("model", result["source"])
        more = f"streams {result['streams']}" if "streams" in result else result.get("form", "")
        named += [(f"{name}, {more}", text) for text in result.get("examples", [])]
    return named


def markdown(made: list[Table], origins: Origins, found: Findings) -> str:
    parts = ["# Results beside the paper's", f"Made {time.strftime('%Y-%m-%d %H:%M')}."]
    parts.append(LEGEND)
    for table in made:
        lines = [f"## {table.title}", "", f"| {' | '.join(table.header)} |"]
        lines.append("|" + " --- |" * len(table.header))
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in table.rows]
        parts.append("\n".join(lines))
    if notes := origins.notes():
        parts.append("## How ours were made")
        parts.append("\n".join(f"{number}. {text}" for number, text in enumerate(notes, 1)))
    for name, text in examples(found):
        quoted = "\n".join(f"    {line}" for line in text.splitlines())
        parts.append(f"### Sample: {name}\n\n{quoted}")
    return "\n\n".join(parts) + "\n"


def page(
    made: list[Table], origins: Origins, curves: list[tuple[str, str]], found: Findings
) -> str:
    """One file: no script, no style sheet, no picture from elsewhere."""
    body = ["<h1>Results beside the paper's</h1>"]
    body.append(f"<p>Made {time.strftime('%Y-%m-%d %H:%M')}. {LEGEND}</p>")
    for table in made:
        body.append(f"<h2>{escape(table.title)}</h2>")
        head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
        rows = "".join(html_row(row) for row in table.rows)
        body.append(f"<table><tr>{head}</tr>{rows}</table>")
    if notes := origins.notes():
        items = [f'<li id="how-{n}">{coded(text)}</li>' for n, text in enumerate(notes, 1)]
        body.append(f'<h2>How ours were made</h2><ol class="note">{"".join(items)}</ol>')
    body.append('<h2>Curves</h2><div class="grid">')
    for title, drawing in curves:
        caption = f"<figcaption>{escape(title)}</figcaption>"
        body.append(f"<figure>{caption}{drawing}</figure>")
    body.append("</div>")
    for name, text in examples(found):
        body.append(f"<h3>Sample: {escape(name)}</h3><pre>{escape(text)}</pre>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>ARMD results</title><style>{STYLE}</style>{''.join(body)}</html>\n"
    )


def coded(note: str) -> str:
    """A note as HTML: what stands between backticks is code."""
    parts = escape(note).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def html_row(row: list[str]) -> str:
    kind = ' class="ours"' if row[0].startswith("ours") else ""
    cells = [escape(cell) for cell in row]
    name, mark, numbers = cells[0].rpartition(" [")
    if kind and mark:
        links = (f'<a href="#how-{n}">{n}</a>' for n in numbers.rstrip("]").split(", "))
        cells[0] = f"{name} <sup>{', '.join(links)}</sup>"
    return f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def figures(found: Findings) -> list[tuple[str, str]]:
    """The runs' curves, and the paper's perplexity against thousands of steps."""
    drawn = []
    for folder, rows in found.training.items():
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            points = {f"held-out, {name}": value for name, value in row.get("heldout", {}).items()}
            points |= {"training": row["loss"]} if isinstance(row.get("loss"), float) else {}
            for name, value in points.items():
                curves.setdefault(name, []).append((row["step"], value))
        if curves:
            drawn.append((f"Our run {folder}: nats a token against steps", plot(curves)))
    for size, panels in (("small", paper.CURVES_SMALL), ("medium", paper.CURVES_MEDIUM)):
        for data, title in zip(paper.DATA, paper.TITLES, strict=True):
            lines = {name: list(points.items()) for name, points in panels[data].items()}
            drawn.append(
                (f"The paper, {size}, {title}: perplexity, thousands of steps", plot(lines))
            )
    return drawn


def plot(curves: dict[str, Any]) -> str:
    """Lines through points, as SVG."""
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)

    def place(x: float | int, y: float | int) -> str:
        across = EDGE + (x - left) / max(right - left, 1e-9) * (WIDE - 2 * EDGE)
        down = HIGH - EDGE - (y - low) / max(high - low, 1e-9) * (HIGH - 2 * EDGE)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for part in range(TICKS + 1):
        x, y = (low + part / TICKS * (high - low) for low, high in ((left, right), (low, high)))
        across, down = place(x, y).split(",")
        parts.append(f'<path d="M{EDGE},{down}H{WIDE - EDGE}" stroke="#ddd"/>')
        at = f'x="{EDGE - 4}" y="{down}" dominant-baseline="middle" text-anchor="end"'
        parts.append(f"<text {at}>{y:.4g}</text>")
        at = f'x="{across}" y="{HIGH - EDGE + 18}" text-anchor="middle"'
        parts.append(f"<text {at}>{x:.4g}</text>")
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(place(*point) for point in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        across, down = EDGE + 170 * (number % 3), 14 + 15 * (number // 3)
        parts.append(f'<text x="{across}" y="{down}" fill="{colour}">{escape(name)}</text>')
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" font-size="13" '
        f'xmlns="http://www.w3.org/2000/svg" role="img">{"".join(parts)}</svg>'
    )
