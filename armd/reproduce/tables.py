"""The study's tables in Markdown, our figures beside the paper's."""

from __future__ import annotations

import re
import statistics
from math import exp, log

from ..eval.paper_tables import (
    CURVES_SMALL,
    SECONDS_A_SAMPLE,
    TABLE_1_SMALL,
    TABLE_2,
    TABLE_3,
    TABLE_4,
)
from .uncertainty import Entries, mean_nats, rank, seeds_of, standard_error

LABELS = {
    "ar": "AR",
    "armd": "ARMD",
    "armd-third": "ARMD, 1/3 of the steps",
    "armd-neighbor": "ARMD, neighbor query",
    "armd-neighbor-third": "ARMD, neighbor query, 1/3 of the steps",
    "ar-third": "AR, 1/3 of the steps",
    "mdlm": "MDLM",
    "sedd-absorb": "SEDD absorb",
    "sedd-uniform": "SEDD uniform",
    "radd": "RADD",
    "d3pm": "D3PM absorb",
    "bd3lm-4": "BD3-LM, blocks of 4",
    "bd3lm-16": "BD3-LM, blocks of 16",
    "bd3lm-4-published": "BD3-LM, blocks of 4 after MDLM",
    "mdlm-85": "MDLM, 85 % of the steps",
    "transformer-xl": "Transformer-XL",
    "plaid": "PLAID",
    "diffusion-lm": "Diffusion-LM",
    "diffusion-bert": "DiffusionBERT",
    "sigma-gpt": "sigma-GPT",
    "xlnet": "XLNet-style",
}
WIKITEXT2 = CURVES_SMALL["wikitext2"]["L2s=6, rho=32"]
# What the paper has for the same model. Of its own model it prints 30 % of the steps on LM1B (300K
# of 1M); on OpenWebText that is 120K of 400K, which stands in its figure. It has no autoregressive
# model on OpenWebText with as many steps: GPT-2 was trained by others, on other text.
IN_TABLE_1 = {
    "armd": f"{WIKITEXT2[400]:g}",
    "armd-third": f"{WIKITEXT2[120]:g} (30 %)",
    "sedd-absorb": f"≤ {TABLE_1_SMALL['SEDD (400K, bound)'][1]:g}",
    "sedd-uniform": f"≤ {TABLE_1_SMALL['SEDD-Uniform (400K, bound)'][1]:g}",
    "radd": f"≤ {TABLE_1_SMALL['RADD (400K, bound)'][1]:g}",
    "d3pm": f"≤ {TABLE_1_SMALL['D3PM (bound)'][1]:g}",
    "plaid": f"≤ {TABLE_1_SMALL['PLAID (600K, bound)'][1]:g}",
}
BD3LM = "BD3-LMs L'={} (1M)"
IN_TABLE_3 = {
    "ar": f"{TABLE_3['Transformer (AR)']:g} packed",
    "armd": f"{TABLE_3['ARMD (1M)']:g}",
    "armd-third": f"{TABLE_3['ARMD (300K)']:g} (30 %)",
    "sedd-absorb": f"≤ {TABLE_3['SEDD (1M)']:g} packed",
    "mdlm": f"≤ {TABLE_3['MDLM (1M)']:g} packed",
    "d3pm": f"≤ {TABLE_3['D3PM-absorb']:g}",
    "bd3lm-4": "≤ " + f"{TABLE_3[BD3LM.format(4)]:g} packed",
    "bd3lm-16": "≤ " + f"{TABLE_3[BD3LM.format(16)]:g} packed",
    "bd3lm-4-published": "≤ " + f"{TABLE_3[BD3LM.format(4)]:g} packed",
    "transformer-xl": f"{TABLE_3['Transformer-X Base (AR)']:g}",
    "diffusion-lm": f"≤ {TABLE_3['Diffusion-LM']:g}",
    "diffusion-bert": f"≤ {TABLE_3['DiffusionBert']:g}",
}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def perplexity_of(entries: Entries, name: str) -> float:
    """Of the mean loss over seeds."""
    return exp(mean_nats(entries, name))


def ratio_to(entries: Entries, name: str, base: str) -> str:
    """Of perplexities; unknown where only one of the two was run."""
    if base not in entries:
        return "-"
    return f"{perplexity_of(entries, name) / perplexity_of(entries, base):.3f}"


def with_error(entries: Entries, name: str, kind: str, pooled: float | None = None) -> str:
    """Perplexity, and its standard error in percent."""
    values = [f[kind] for f in seeds_of(entries, name) if kind in f]
    if not values:
        return "-"
    error = standard_error(entries, name, kind, pooled)
    text = f"{exp(statistics.mean(values)):.1f}"
    return text if error is None else f"{text} ± {100 * error:.1f} %"


def perplexity_table(entries: Entries) -> str:
    header = ["model", "held-out ppl", "rank", "over AR", "S=2", "S=4", "random order"]
    header += ["training FLOPs over AR", "paper: LM1B", "paper: WikiText2"]
    rows = []
    flops = entries["ar"]["figures"]["train_flops_a_token"] if "ar" in entries else None
    present = [name for name in LABELS if name in entries]
    for name in sorted(present, key=lambda name: perplexity_of(entries, name)):
        figures = entries[name]["figures"]
        kind = "bound" if "bound" in figures else "left to right"
        rows.append(
            [
                LABELS[name],
                ("≤ " if kind == "bound" else "") + with_error(entries, name, kind),
                rank(entries, name, present),
                ratio_to(entries, name, "ar"),
                *(with_error(entries, name, k) for k in ("S=2", "S=4", "random")),
                f"{figures['train_flops_a_token'] / flops:.2f}" if flops else "-",
                IN_TABLE_3.get(name, "-"),
                IN_TABLE_1.get(name, "-"),
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
    # by the share of the base run: 80K of 400K. The paper's 10K and 50K are 2.5 and 12.5 %
    rows |= {"sbp-20": "ARMD (rho=32, SBP 80K)"}
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
            sentences = f[f"S={s} from sentences"]
            errors = [f" ± {error:.4f}" for error in f.get(f"S={s} errors", ())] or [""] * 4
            gaps = (alone - base, together - alone, together - base, sentences - base)
            shown = [f"{gap:+.4f}{error}" for gap, error in zip(gaps, errors, strict=True)]
            overlap = f"{f[f'S={s} overlap']:.4f}"
            rows.append([name, str(s), f"{base:.3f}", *shown[:3], overlap, shown[3]])
    return markdown(header, rows)


def latency_tables(entries: Entries) -> str:
    parts = []
    if "training" in entries:
        times = entries["training"]["figures"]
        rows = []
        layers = sum(name.startswith("L2s=") for name in times)
        for name, t in times.items():
            two = int(name[4:]) if name.startswith("L2s=") else 0
            # the paper's small model has 12 layers
            known = TABLE_4.get(f"ARMD L2s={12 * two // layers}" if two else name)
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
            paper = SECONDS_A_SAMPLE.get(int(name[2:]) if name.startswith("S=") else 0)
            one = times["neighbor S=1" if name.startswith("neighbor") else "S=1"]
            rows.append(
                [
                    name,
                    f"{t['best']:.3f} s",
                    f"{one['best'] / t['best']:.2f}",
                    f"{one['median'] / t['median']:.2f}",
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
    "third-rho-16": "rho 16 (12.5 % of the window; the paper's 16 and 64 are 1.6 and 6.3 %)",
    "third-no-curriculum": "rho 4 from the first step",
    "third-random": "random orders from the first step",
    "third-pe-0.02": "PE initialised with 0.02",
    "third-query-mean": "query: mean of what a row sees",
}


def ablation_table(entries: Entries, pooled: float | None = None) -> str:
    """`pooled`: how a loss varies from seed to seed, seen where there are several."""
    header = ["changed", "left to right", "over as it is", "S=2", "S=4", "random order"]
    rows = []
    for name, label in ABLATIONS.items():
        if name not in entries:
            continue
        ratio = ratio_to(entries, name, "armd-third")
        kinds = ("S=2", "S=4", "random")
        rest = [with_error(entries, name, kind, pooled) for kind in kinds]
        rows.append([label, with_error(entries, name, "left to right", pooled), ratio, *rest])
    return markdown(header, rows)
