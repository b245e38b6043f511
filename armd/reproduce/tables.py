"""The study's tables in Markdown, our figures beside the paper's."""

from __future__ import annotations

import re
import statistics
from math import exp, log
from typing import Any

from ..eval.paper_tables import SECONDS_A_SAMPLE, TABLE_1_SMALL, TABLE_2, TABLE_3, TABLE_4

Entries = dict[str, Any]

LABELS = {
    "ar": "AR",
    "armd": "ARMD",
    "armd-third": "ARMD, 1/3 of the steps",
    "mdlm": "MDLM",
    "sedd-absorb": "SEDD absorb",
    "sedd-uniform": "SEDD uniform",
    "radd": "RADD",
    "d3pm": "D3PM absorb",
    "bd3lm-4": "BD3-LM, blocks of 4",
    "bd3lm-16": "BD3-LM, blocks of 16",
    "sigma-gpt": "sigma-GPT",
    "xlnet": "XLNet-style",
}
IN_TABLE_1 = {
    "ar": "GPT-2",
    "armd": "ARMD (400K)",
    "armd-third": "ARMD (180K)",
    "sedd-absorb": "SEDD (400K, bound)",
    "sedd-uniform": "SEDD-Uniform (400K, bound)",
    "radd": "RADD (400K, bound)",
    "d3pm": "D3PM (bound)",
}
IN_TABLE_3 = {
    "ar": "Transformer (AR)",
    "armd": "ARMD (1M)",
    "armd-third": "ARMD (300K)",
    "sedd-absorb": "SEDD (1M)",
    "mdlm": "MDLM (1M)",
    "d3pm": "D3PM-absorb",
    "bd3lm-4": "BD3-LMs L'=4 (1M)",
    "bd3lm-16": "BD3-LMs L'=16 (1M)",
}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def seeds_of(entries: Entries, name: str) -> list[dict[str, Any]]:
    """The figures of a run with every seed, the first seed's first; of this recipe alone."""
    same = re.compile(rf"{re.escape(name)}(-seed\d+)?")
    found = [entries[key] for key in sorted(entries) if same.fullmatch(key)]
    return [entry["figures"] for entry in found if recipe_of(entry) == recipe_of(entries[name])]


def recipe_of(entry: dict[str, Any]) -> list[Any]:
    return [entry.get("facts", {}).get(fact) for fact in ("steps", "batch", "length")]


def nats(figures: dict[str, Any]) -> float:
    """The figure a model is compared by: left to right, or its bound."""
    return figures["bound"] if "bound" in figures else figures["left to right"]


def perplexity_of(entries: Entries, name: str) -> float:
    """Of the mean loss over seeds."""
    return exp(statistics.mean(nats(figures) for figures in seeds_of(entries, name)))


def with_spread(entries: Entries, name: str, kind: str) -> str:
    """Perplexity, and over how many percent the seeds spread."""
    values = [f[kind] for f in seeds_of(entries, name) if kind in f]
    if not values:
        return "-"
    text = f"{exp(statistics.mean(values)):.1f}"
    if len(values) > 1:
        text += f" ± {100 * statistics.stdev(values):.1f} %"
    return text


def perplexity_table(entries: Entries) -> str:
    header = ["model", "held-out ppl", "over AR", "S=2", "S=4", "random order"]
    header += ["training FLOPs over AR", "paper: LM1B", "paper: WikiText2"]
    rows = []
    flops = entries["ar"]["figures"]["train_flops_a_token"] if "ar" in entries else None
    present = [name for name in LABELS if name in entries]
    for name in sorted(present, key=lambda name: perplexity_of(entries, name)):
        figures = entries[name]["figures"]
        kind = "bound" if "bound" in figures else "left to right"
        ratio = perplexity_of(entries, name) / perplexity_of(entries, "ar") if flops else 0.0
        third, first = TABLE_3.get(IN_TABLE_3.get(name, "")), IN_TABLE_1.get(name)
        rows.append(
            [
                LABELS[name],
                ("≤ " if kind == "bound" else "") + with_spread(entries, name, kind),
                f"{ratio:.3f}",
                *(with_spread(entries, name, k) for k in ("S=2", "S=4", "random")),
                f"{figures['train_flops_a_token'] / flops:.2f}" if flops else "-",
                f"{third:g}" if third else "-",
                f"{TABLE_1_SMALL[first][1]:g}" if first else "-",
            ]
        )
    return markdown(header, rows)


def slope(entries: Entries, judge: str) -> float:
    """What a bit of entropy adds to the logarithm of a judge's perplexity, seen at two temperatures
    of one sampler; 0 where it was not measured."""
    ends = [entries.get(f"slope {name}", {}).get("figures", {}) for name in ("sharper", "flatter")]
    key = f"{judge}_perplexity"
    if not all(key in end for end in ends):
        return 0.0
    rise = log(ends[1][key] / ends[0][key])
    return rise / (ends[1]["entropy_bits"] - ends[0]["entropy_bits"])


def at_equal_entropy(entries: Entries, judge: str, name: str, base: str) -> float:
    """The ratio of two samplers' perplexities; what is left of a difference in their entropies is
    taken out with `slope`."""
    many, one = (entries[key]["figures"] for key in (name, base))
    key, rest = f"{judge}_perplexity", many["entropy_bits"] - one["entropy_bits"]
    return many[key] / one[key] * exp(-slope(entries, judge) * rest)


def generation_table(entries: Entries) -> str:
    header = ["sampler", "passes", "temperature", "entropy, bits", "SmolLM2 ppl", "over S=1"]
    header += ["own judge ppl", "over S=1", "s a text", "paper: ppl (bits)"]
    rows = []
    for name, entry in entries.items():
        if name.startswith("slope"):
            continue
        f = entry["figures"]
        if "failed" in f:
            rows.append([name, *["-"] * 8, f["failed"].split(";")[0]])
            continue
        base = re.sub(r" S=\d+$", " S=1", name)
        row = [name, str(f.get("calls", "-"))]
        row += [f"{f['temperature']:.3f}" if "temperature" in f else "-"]
        row += [f"{f['entropy_bits']:.2f}"]
        for judge in ("large", "own"):
            key = f"{judge}_perplexity"
            row.append(f"{f[key]:.1f} ± {100 * f[f'{judge}_error']:.1f} %" if key in f else "-")
            one = entries.get(base, {}).get("figures", {})
            compared = base.endswith("S=1") and key in f and key in one
            row.append(f"{at_equal_entropy(entries, judge, name, base):.3f}" if compared else "-")
        row += [f"{f['seconds_a_text']:.3f}" if "seconds_a_text" in f else "-"]
        row += [in_table_2(name, entry["facts"]["length"])]
        rows.append(row)
    return markdown(header, rows)


def in_table_2(name: str, length: int) -> str:
    """The paper's figure for the same sampler, if it has one."""
    rows = {"ar": "AR baseline", "sedd-absorb": "SEDD", "mdlm": "MDLM"}
    # by the share of the base run: 50K and 80K of 400K
    rows |= {"sbp-10": "ARMD (rho=32, SBP 50K)", "sbp-20": "ARMD (rho=32, SBP 80K)"}
    run, _, how = name.partition(" ")
    found = TABLE_2.get(rows.get(run, ""))
    if found is None:
        return "-"
    part = length // int(how[2:]) if how.startswith("T=") else int(how[2:] or 1)
    column = {1: 0, 2: 1, 4: 2}.get(part)
    return "-" if column is None else found[column]


def price_table(entries: Entries) -> str:
    header = ["model", "S", "left to right", "price of the order", "price of independence"]
    header += ["both", "overlap", "order's price, streams from sentences"]
    rows = []
    for name, entry in entries.items():
        f = entry["figures"]
        base = f["left to right"]
        for s in sorted(int(k[2:]) for k in f if re.fullmatch(r"S=\d+", k)):
            alone, together = f[f"S={s} one by one"], f[f"S={s}"]
            row = [name, str(s), f"{base:.3f}", f"{alone - base:+.4f}", f"{together - alone:+.4f}"]
            row += [f"{together - base:+.4f}", f"{f[f'S={s} overlap']:.4f}"]
            rows.append([*row, f"{f[f'S={s} from sentences'] - base:+.4f}"])
    return markdown(header, rows)


def latency_tables(entries: Entries) -> str:
    parts = []
    if "training" in entries:
        times = entries["training"]["figures"]
        rows = []
        layers = len(times) - 1
        for name, t in times.items():
            two = int(name[4:]) if name != "AR" else 0
            # the paper's small model has 12 layers
            known = TABLE_4.get(f"ARMD L2s={12 * two // layers}" if two else "AR")
            rows.append(
                [
                    name,
                    f"{1000 * t['best']:.1f} ms",
                    f"{t['best'] / times['AR']['best']:.2f}",
                    f"{t['median'] / times['AR']['median']:.2f}",
                    f"{known[1]:.2f}" if known else "-",
                ]
            )
        header = ["training step", "fastest", "over AR", "by medians", "paper, same share of L"]
        parts.append(markdown(header, rows))
    if "decoding" in entries:
        times = entries["decoding"]["figures"]
        rows = []
        for name, t in times.items():
            s = int(name[2:]) if name != "AR" else 0
            paper = SECONDS_A_SAMPLE.get(s)
            rows.append(
                [
                    name,
                    f"{t['best']:.3f} s",
                    f"{times['S=1']['best'] / t['best']:.2f}",
                    f"{times['S=1']['median'] / t['median']:.2f}",
                    f"{SECONDS_A_SAMPLE[1] / paper:.2f}" if paper else "-",
                ]
            )
        header = ["one text", "fastest", "times as fast as S=1", "by medians", "paper"]
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)


ABLATIONS = {
    "armd-third": "as it is: L2s = L/2, rho 4 of 128, unit-gain PE, prefix",
    "ar-third": "AR (query shift)",
    "third-l2s-quarter": "L2s = L/4",
    "third-l2s-all": "L2s = L",
    "third-rho-0": "rho 0: left to right only",
    "third-rho-16": "rho 16",
    "third-no-curriculum": "rho 4 from the first step",
    "third-random": "random orders from the first step",
    "third-pe-0.02": "PE initialised with 0.02",
    "third-query-mean": "query: mean of what a row sees",
}


def ablation_table(entries: Entries) -> str:
    header = ["changed", "left to right", "over as it is", "S=2", "S=4", "random order"]
    rows = []
    for name, label in ABLATIONS.items():
        if name not in entries:
            continue
        ratio = perplexity_of(entries, name) / perplexity_of(entries, "armd-third")
        kinds = ("S=2", "S=4", "random")
        rest = [with_spread(entries, name, kind) for kind in kinds]
        rows.append([label, with_spread(entries, name, "left to right"), f"{ratio:.3f}", *rest])
    return markdown(header, rows)
