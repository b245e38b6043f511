"""The paper's tables, its figures beside ours. What was not run says so."""

from dataclasses import dataclass, field
from typing import Any

from . import paper
from .findings import Findings

NOT_RUN = "not run"


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    """How each of our figures was made."""


def tables(found: Findings) -> list[Table]:
    ours = zero_shot_rows(found)
    blank = [["ours", *[NOT_RUN] * 5]]
    return [
        zero_shot(
            "Table 1. Zero-shot perplexity, small", paper.TABLE_1_SMALL, ours or blank, found
        ),
        zero_shot(
            "Table 1. Zero-shot perplexity, medium", paper.TABLE_1_MEDIUM, ours or blank, found
        ),
        generation(found),
        lm1b(found),
        throughput(found),
        zero_shot("Ablation, small", paper.ABLATION_SMALL, ours or blank, found),
        zero_shot("Ablation, medium", paper.ABLATION_MEDIUM, ours or blank, found),
        *([infilling(found)] if found.infill else []),
    ]


def provenance(result: dict[str, Any]) -> str:
    return f"`{result.get('command', '?')}` ({result.get('date', '?')}; {result['file']})"


def notes(results: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(provenance(result) for result in results))


def zero_shot(
    title: str, published: dict[str, paper.Scores], ours: list[list[str]], found: Findings
) -> Table:
    rows = [[name, *(f"{score:.2f}" for score in scores)] for name, scores in published.items()]
    return Table(title, ["method", *paper.TITLES], rows + ours, notes(zero_shot_results(found)))


def zero_shot_results(found: Findings) -> list[dict[str, Any]]:
    return [r for r in found.ppl if r["settings"]["protocol"] != "rows" and r["data"] in paper.DATA]


def zero_shot_rows(found: Findings) -> list[list[str]]:
    """One row for each model, protocol and order; they are different claims."""
    groups: dict[str, dict[str, str]] = {}
    for result in zero_shot_results(found):
        settings = result["settings"]
        name = f"ours: {settings['model']} ({settings['protocol']}, {settings['order']}"
        name += f", window {settings['window']}"
        name += f", first {settings['limit']} windows)" if settings.get("limit") else ")"
        mark = "≤" if result["bound"] else ""
        groups.setdefault(name, {})[result["data"]] = f"{mark}{result['perplexity']:.2f}"
    return [
        [name, *(cells.get(data, NOT_RUN) for data in paper.DATA)] for name, cells in groups.items()
    ]


def generation(found: Findings) -> Table:
    rows = [[name, *cells] for name, cells in paper.TABLE_2.items()]
    groups: dict[str, dict[int, str]] = {}
    for result in found.samples:
        part = result["retokenised"]
        name = f"ours: {result.get('model', result['source'])} (judge {result['judge']}"
        name += f", temperature {result['temperature']})" if "temperature" in result else ")"
        cell = f"{part['corpus']:.1f} ({result['entropy_bits']:.1f})"
        groups.setdefault(name, {})[result.get("streams", 1)] = cell
    for name, cells in groups.items():
        rows.append([name, *(cells.get(streams, NOT_RUN) for streams in (1, 2, 4))])
    if not groups:
        rows.append(["ours", *[NOT_RUN] * 3])
    header = ["model", "T=1024 (S=1)", "T=512 (S=2)", "T=256 (S=4)"]
    title = "Table 2. Generation: perplexity under the judge (entropy in bits)"
    return Table(title, header, rows, notes(found.samples))


def lm1b(found: Findings) -> Table:
    rows = [[name, f"{score:.2f}"] for name, score in paper.TABLE_3.items()]
    ours = [r for r in found.ppl if r["settings"]["protocol"] == "rows" and r["data"] == "lm1b"]
    for result in ours:
        settings = result["settings"]
        mark = "≤" if result["bound"] else ""
        name = f"ours: {settings['model']} ({settings['order']}, rows of {settings['window']})"
        rows.append([name, f"{mark}{result['perplexity']:.2f}"])
    if not ours:
        rows.append(["ours", NOT_RUN])
    return Table("Table 3. LM1B test perplexity", ["method", "ppl"], rows, notes(ours))


def throughput(found: Findings) -> Table:
    rows = [[name, f"{rate:.2f}", f"{ratio:.2f}x"] for name, (rate, ratio) in paper.TABLE_4.items()]
    for row in found.bench:
        rate = row["tokens_per_second"] / row["length"]
        where = row["settings"].get("device", "?")
        name = f"ours: {row['model']} (N={row['length']}, {where})"
        rows.append([name, f"{rate:.2f}", f"{row['ratio_to_ar']:.2f}x"])
    if not found.bench:
        rows.append(["ours", NOT_RUN, NOT_RUN])
    header = ["model", "sequences/s", "cost against AR"]
    files = dict.fromkeys(f"armd bench train --json {row['file']}" for row in found.bench)
    return Table("Table 4. Training throughput", header, rows, list(files))


def infilling(found: Findings) -> Table:
    rows = [
        [
            f"{r['model']}: {r['blanks']}, {r['share']:.0%} of {r['window']}",
            f"{r['left']['perplexity']:.2f}",
            f"{r['both']['perplexity']:.2f}",
            f"{r['nats_gained']:.4f}",
        ]
        for r in found.infill
    ]
    header = ["blanks", "ppl, left side alone", "ppl, both sides", "nats gained"]
    return Table("Infilling (not in the paper)", header, rows, notes(found.infill))
