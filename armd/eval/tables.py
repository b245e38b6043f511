"""The paper's tables, its figures beside ours. What was not run says so."""

from dataclasses import dataclass, field, replace
from typing import Any

from . import paper_tables as paper
from .result_files import Findings

NOT_RUN = "not run"
MEDIUM = 200_000_000
"""Models of more weights stand in the tables of medium ones; the paper's have 124M and 350M."""

Result = dict[str, Any]


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]
    """The first cell names the row; ours end with the numbers of their origins, as [1, 2]."""


@dataclass
class Origins:
    """The commands that made our figures, numbered in the order in which they are met."""

    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    """The first of each command and file."""

    def of(self, results: list[Result]) -> str:
        """The numbers of these results' origins."""
        for result in results:
            self.results.setdefault((result.get("command", "?"), result["file"]), result)
        keys = list(self.results)
        numbers = {keys.index((r.get("command", "?"), r["file"])) + 1 for r in results}
        return f" [{', '.join(map(str, sorted(numbers)))}]"

    def notes(self) -> list[str]:
        """Command, date, file and configuration of each."""
        found = []
        for (command, file), result in self.results.items():
            facts = [str(result.get("date", "no date")), file, result.get("config", "")]
            found.append(f"`{command}` ({'; '.join(filter(None, facts))})")
        return found


def tables(found: Findings, origins: Origins) -> list[Table]:
    small, medium = (zero_shot_rows(found, origins, large=large) for large in (False, True))
    ours = replace(found, ppl=[r for r in found.ppl if is_ours(r)])
    parts = [zero_shot_rows(ours, origins, large=large) for large in (False, True)]
    title = "Zero-shot perplexity"
    return [
        zero_shot(f"Table 1. {title}, small", paper.TABLE_1_SMALL, small),
        zero_shot(f"Table 1. {title}, medium", paper.TABLE_1_MEDIUM, medium),
        generation(found, origins),
        lm1b(found, origins),
        throughput(found, origins),
        zero_shot("Ablation, small", paper.ABLATION_SMALL, parts[0]),
        zero_shot("Ablation, medium", paper.ABLATION_MEDIUM, parts[1]),
        *([infilling(found, origins)] if found.infill else []),
    ]


def is_ours(result: Result) -> bool:
    return result["settings"].get("kind_of_model", "armd") == "armd"


def zero_shot(title: str, published: dict[str, paper.Scores], ours: list[list[str]]) -> Table:
    rows = []
    for name, scores in published.items():
        bound = "≤" if "bound" in name else ""
        rows.append([name, *(f"{bound}{score:.2f}" for score in scores)])
    rows += ours or [["ours", *[NOT_RUN] * len(paper.TITLES)]]
    return Table(title, ["method", *paper.TITLES], rows)


def zero_shot_rows(found: Findings, origins: Origins, *, large: bool) -> list[list[str]]:
    """One row for each model, protocol and order; they are different claims."""
    groups: dict[str, dict[str, Result]] = {}
    for result in found.ppl:
        settings = result["settings"]
        fits = large == (result.get("parameters", 0) > MEDIUM)
        if settings["protocol"] == "rows" or result["data"] not in paper.DATA or not fits:
            continue
        name = f"ours: {settings['model']} ({settings['protocol']}, {ordered(settings)}"
        name += f", window {settings['window']}"
        name += f", first {settings['limit']} windows)" if settings.get("limit") else ")"
        groups.setdefault(name, {})[result["data"]] = result
    return [
        [
            name + origins.of(list(cells.values())),
            *(perplexity(cells[data]) if data in cells else NOT_RUN for data in paper.DATA),
        ]
        for name, cells in groups.items()
    ]


def ordered(settings: dict[str, Any]) -> str:
    """The order's name, with what it depends on."""
    words = {"strided": f" S={settings.get('streams')}", "masking": f" T={settings.get('steps')}"}
    order = settings.get("order", "its own bound")  # a bound is over the model's noise, not orders
    return order + words.get(order, "")


def perplexity(result: Result) -> str:
    return f"{'≤' if result['bound'] else ''}{result['perplexity']:.2f}"


def generation(found: Findings, origins: Origins) -> Table:
    rows = [[name, *cells] for name, cells in paper.TABLE_2.items()]
    groups: dict[str, dict[int, Result]] = {}
    for result in found.samples:
        name = f"ours: {result.get('model', result['source'])} (judge {result['judge']}"
        name += f", {result['samples']} of {result['mean_tokens']:.0f} tokens"
        name += f", temperature {result['temperature']:g})" if "temperature" in result else ")"
        groups.setdefault(name, {})[result.get("streams", 1)] = result
    for name, made in groups.items():
        cells = [judged(made[s]) if s in made else NOT_RUN for s in (1, 2, 4)]
        if not any("model" in result for result in made.values()):
            cells[1:] = ["-", "-"]  # a file of texts has no streams
        rows.append([name + origins.of(list(made.values())), *cells])
    if not groups:
        rows.append(["ours", *[NOT_RUN] * 3])
    header = ["model", "T=1024 (S=1)", "T=512 (S=2)", "T=256 (S=4)"]
    title = "Table 2. Generation: perplexity under the judge (entropy in bits)"
    return Table(title, header, rows)


def judged(result: Result) -> str:
    part = result["retokenised"]
    error = part.get("corpus_standard_error")
    spread = f" ± {error:.1f}" if error is not None else ""
    return f"{part['corpus']:.1f}{spread} ({result['entropy_bits']:.1f})"


def lm1b(found: Findings, origins: Origins) -> Table:
    rows = [[name, f"{score:.2f}"] for name, score in paper.TABLE_3.items()]
    ours = [r for r in found.ppl if r["settings"]["protocol"] == "rows" and r["data"] == "lm1b"]
    for result in ours:
        settings = result["settings"]
        name = f"ours: {settings['model']} ({ordered(settings)}, rows of {settings['window']})"
        rows.append([name + origins.of([result]), perplexity(result)])
    if not ours:
        rows.append(["ours", NOT_RUN])
    return Table("Table 3. LM1B test perplexity", ["method", "ppl"], rows)


def throughput(found: Findings, origins: Origins) -> Table:
    rows = [[name, f"{rate:.2f}", f"{ratio:.2f}x"] for name, (rate, ratio) in paper.TABLE_4.items()]
    for row in found.bench:
        rate = row["tokens_per_second"] / row["length"]
        where = row["settings"].get("device", "?")
        name = f"ours: {row['model']} (N={row['length']}, {where})"
        made = origins.of([{"command": "armd bench train", **row}])
        rows.append([name + made, f"{rate:.2f}", f"{row['ratio_to_ar']:.2f}x"])
    if not found.bench:
        rows.append(["ours", NOT_RUN, NOT_RUN])
    header = ["model", "sequences/s", "cost against AR"]
    return Table("Table 4. Training throughput", header, rows)


def infilling(found: Findings, origins: Origins) -> Table:
    rows = [
        [
            f"ours: {r['model']} ({r['blanks']}, {r['share']:.0%} of {r['window']} tokens)"
            + origins.of([r]),
            f"{r['left']['perplexity']:.2f}",
            f"{r['both']['perplexity']:.2f}",
            f"{r['nats_gained']:.4f}",
        ]
        for r in found.infill
    ]
    header = ["blanks", "ppl, left side alone", "ppl, both sides", "nats gained"]
    return Table("Infilling (not in the paper)", header, rows)
