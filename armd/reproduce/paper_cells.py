"""Every cell of the paper's tables and curves: its published figure, and the command of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..eval import paper_tables as paper
from ..eval.corpora import apart
from .paper_runs import STRIDED, K, PaperScale

OURS_SMALL = {
    "L2s=6, rho=32": "small",
    "L2s=6, rho=64": "small-rho64",
    "L2s=12, rho=32": "small-l12",
}
OURS_MEDIUM = {"L2s=12, rho=32": "medium", "L2s=6, rho=32": "medium-l6"}
# rows of Table 1 -> run; a run "hub:NAME" is a published model
TABLE_1_SMALL = {
    "GPT-2": ("hub:gpt2", 0),
    "D3PM (bound)": ("d3pm", 400),
    "PLAID (600K, bound)": ("plaid", 600),
    "SEDD-Uniform (400K, bound)": ("sedd-uniform", 400),
    "SEDD (400K, bound)": ("sedd-absorb", 400),
    "RADD (400K, bound)": ("radd", 400),
    "ARMD (180K)": ("small", 180),
    "ARMD (400K)": ("small", 400),
}
TABLE_1_MEDIUM = {
    "GPT-2": ("hub:gpt2-medium", 0),
    "SEDD (400K, bound)": ("medium-sedd-absorb", 400),
    "RADD (400K, bound)": ("medium-radd", 400),
    "ARMD (120K)": ("medium", 120),
    "ARMD (300K)": ("medium", 300),
}
# rows of Table 3 -> run, step in thousands, protocol
TABLE_3 = {
    "Transformer-X Base (AR)": ("lm1b-packed-transformer-xl", 1000, "lm1b-packed"),
    "Transformer (AR)": ("lm1b-packed-ar", 1000, "lm1b-packed"),
    "D3PM-absorb": ("lm1b-d3pm", 1000, "lm1b"),
    "Diffusion-LM": ("lm1b-diffusion-lm", 1000, "lm1b"),
    "DiffusionBert": ("lm1b-diffusion-bert", 1000, "lm1b"),
    "SEDD (1M)": ("lm1b-packed-sedd-absorb", 1000, "lm1b-packed"),
    "MDLM (1M)": ("lm1b-packed-mdlm", 1000, "lm1b-packed"),
    "BD3-LMs L'=16 (1M)": ("lm1b-packed-bd3lm-16", 150, "lm1b-packed"),
    "BD3-LMs L'=4 (1M)": ("lm1b-packed-bd3lm-4", 150, "lm1b-packed"),
    "ARMD (300K)": ("lm1b", 300, "lm1b"),
    "ARMD (1M)": ("lm1b", 1000, "lm1b"),
}
# not in the paper: our model in the form of LM1B that BD3-LM's figures are of
ALSO_TABLE_3 = {
    "ARMD (300K), packed": ("lm1b-packed", 300, "lm1b-packed"),
    "ARMD (1M), packed": ("lm1b-packed", 1000, "lm1b-packed"),
    "BERT-mouth (in the caption)": ("lm1b-bert-mouth", 1000, "lm1b"),
}


@dataclass(frozen=True)
class Measure:
    """One command; its result file fills some cells."""

    name: str
    run: str
    step: int
    """In thousands, of the paper's run; 0 for its last."""
    before: tuple[str, ...]
    """The words of the verb, which the model follows, if there is one."""
    options: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A figure of the paper and where ours comes from."""

    table: str
    row: str
    column: str
    published: str
    measure: Measure
    read: Callable[[dict[str, Any]], str | None]
    """Our figure in the result file, if it is there."""


def cells(scale: PaperScale, *, texts: str, judge: str, device: str) -> list[Cell]:
    """All of them."""
    return [
        *zero_shot("Table 1, small", paper.TABLE_1_SMALL, TABLE_1_SMALL.__getitem__, texts),
        *zero_shot("Table 1, medium", paper.TABLE_1_MEDIUM, TABLE_1_MEDIUM.__getitem__, texts),
        *generation(scale, judge, device),
        *lm1b(texts),
        *throughput(scale, device),
        *zero_shot("Ablation, small", paper.ABLATION_SMALL, named_in(OURS_SMALL), texts),
        *zero_shot("Ablation, medium", paper.ABLATION_MEDIUM, named_in(OURS_MEDIUM), texts),
        *curves("Curves, small", paper.CURVES_SMALL, OURS_SMALL, texts),
        *curves("Curves, medium", paper.CURVES_MEDIUM, OURS_MEDIUM, texts),
    ]


def named_in(runs: dict[str, str]) -> Callable[[str], tuple[str, int]]:
    """Of a row such as "L2s=6, rho=32 (60K)" its run and step."""

    def found(row: str) -> tuple[str, int]:
        name, _, steps = row.partition(" (")
        return runs[name], int(steps.rstrip("K)"))

    return found


def zero_shot(
    table: str,
    published: dict[str, paper.Scores],
    run_of: Callable[[str], tuple[str, int]],
    texts: str,
) -> Iterator[Cell]:
    for row, scores in published.items():
        run, step = run_of(row)
        measure = perplexity(run, step, "sedd", texts, bound="bound" in row)
        for data, title, score in zip(paper.DATA, paper.TITLES, scores, strict=True):
            mark = "≤ " if "bound" in row else ""
            yield Cell(table, row, title, f"{mark}{score:.2f}", measure, perplexity_of(data))


def curves(table: str, published: paper.Curves, runs: dict[str, str], texts: str) -> Iterator[Cell]:
    for data, title in zip(paper.DATA, paper.TITLES, strict=True):
        for line, points in published[data].items():
            for step, score in points.items():
                measure = perplexity(runs[line], step, "sedd", texts)
                row = f"{line} ({step}K)"
                yield Cell(table, row, title, f"{score:g}", measure, perplexity_of(data))


def lm1b(texts: str) -> Iterator[Cell]:
    words = [word for word in apart(texts) if word.partition("=")[0] == "lm1b"]
    for row, (run, step, protocol) in (TABLE_3 | ALSO_TABLE_3).items():
        bound = not row.startswith(("ARMD", "Transformer"))
        measure = perplexity(run, step, protocol, ",".join(words), bound=bound)
        score = paper.TABLE_3.get(row)
        published = "-" if score is None else f"{'≤ ' if bound else ''}{score:.2f}"
        published += " a word" if row.startswith("Transformer-X") else ""  # not a token
        yield Cell(
            "Table 3", f"{row}, {protocol}", "ppl", published, measure, perplexity_of("lm1b")
        )


def perplexity(run: str, step: int, protocol: str, texts: str, *, bound: bool = False) -> Measure:
    options = ["--protocol", protocol, "--data", texts]
    if bound:
        options += ["--draws", "4"]
    name = f"{protocol}-{run.replace(':', '-')}" + (f"-{step}K" if step else "")
    return Measure(name, run, step, ("eval", "ppl"), tuple(options))


def perplexity_of(data: str) -> Callable[[dict[str, Any]], str | None]:
    def read(content: dict[str, Any]) -> str | None:
        for result in content["results"]:
            if result["data"] == data:
                error = result.get("perplexity_standard_error")
                spread = "" if error is None else f" ± {error:.2f}"
                mark = "≤ " if result["bound"] else "~ " if result.get("pseudo_likelihood") else ""
                return f"{mark}{result['perplexity']:.2f}{spread}"
        return None

    return read


def generation(scale: PaperScale, judge: str, device: str) -> Iterator[Cell]:
    """Table 2: our strided phases in 1, 2 and 4 streams, baselines in as many steps; its caption's
    seconds a sample."""
    n = scale.length
    columns = {"T=1024": (1, n), "T=512 (S=2)": (2, n // 2), "T=256 (S=4)": (4, n // 4)}
    for row, values in paper.TABLE_2.items():
        run, step, steps = table_2_run(row)
        for (column, (streams, passes)), value in zip(columns.items(), values, strict=True):
            if value == "-":
                continue
            how = ("--steps", str(passes)) if steps else ("--streams", str(streams))
            options = ["--judge", judge, "--count", str(scale.samples), "--length", str(n), *how]
            if scale.bits is not None and not steps:
                options += ["--match-entropy", f"{scale.bits:g}"]
            name = f"samples-{run}-{how[0][2:]}{how[1]}"
            measure = Measure(name, run, step, ("eval", "samples"), tuple(options))
            yield Cell("Table 2", row, column, value, measure, judged)
    words = ["--size", scale.size, "--length", str(n), "--weights", "fp32", "--no-baselines"]
    words += ["--streams", "1", "2", "4", "--device", device, *scale.timing]
    measure = Measure("bench-decode", "", 0, ("bench", "decode"), tuple(words))
    for streams, seconds in paper.SECONDS_A_SAMPLE.items():
        row, column = f"seconds a sample, S={streams}", "seconds"
        yield Cell("Table 2, caption", row, column, f"{seconds:g}", measure, decoding(streams))


def table_2_run(row: str) -> tuple[str, int, bool]:
    """Run, its step in thousands, and whether it writes in steps."""
    baselines = {"AR baseline": ("ar", 500), "SEDD": ("sedd-absorb", 1000), "MDLM": ("mdlm", 1000)}
    if row in baselines:
        run, step = baselines[row]
        return run, step, run != "ar"
    found = re.fullmatch(r"ARMD \(rho=(\d+), SBP (\d+)K\)", row)
    assert found and int(found[2]) * K in STRIDED
    base = {"32": "small", "16": "small-rho16"}[found[1]]
    return f"{base}-sbp{found[2]}K", 0, False


def judged(content: dict[str, Any]) -> str | None:
    result = content["results"][-1]  # of the newest command
    part = result["retokenised"]
    if part["corpus_standard_error"] is None:  # of one text
        return None
    return (
        f"{part['corpus']:.1f} ± {part['corpus_standard_error']:.1f} ({result['entropy_bits']:.1f})"
    )


def decoding(streams: int) -> Callable[[dict[str, Any]], str | None]:
    def read(content: dict[str, Any]) -> str | None:
        rows = [row for row in content["rows"] if re.search(rf"\bS={streams}\b", row["way"])]
        return f"{rows[0]['seconds']:.2f}" if rows else None

    return read


def throughput(scale: PaperScale, device: str) -> Iterator[Cell]:
    """Table 4: sequences a second, and the cost against AR."""
    two = tuple(map(str, scale.two_stream))
    words = ("--size", scale.size, "--lengths", str(scale.length), "--two-stream", *two)
    words += ("--no-gpt2", "--device", device, *scale.timing)
    measure = Measure("bench-train", "", 0, ("bench", "train"), words)
    models = ["AR", *(f"ARMD L2s={count}" for count in scale.two_stream)]
    for (row, (rate, ratio)), model in zip(paper.TABLE_4.items(), models, strict=True):
        yield Cell("Table 4", row, "sequences/s", f"{rate:g}", measure, trained(model, "rate"))
        yield Cell("Table 4", row, "over AR", f"{ratio:.2f}", measure, trained(model, "ratio"))


def trained(model: str, what: str) -> Callable[[dict[str, Any]], str | None]:
    def read(content: dict[str, Any]) -> str | None:
        for row in content["rows"]:
            if row["model"] == model:
                rate = row["tokens_per_second"] / row["length"]
                return f"{row['ratio_to_ar']:.2f}" if what == "ratio" else f"{rate:.2f}"
        return None

    return read
