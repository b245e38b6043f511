"""The paper's claims, each checked against the study's own figures."""

from __future__ import annotations

from math import exp, hypot, log
from typing import Any

from .tables import LABELS, at_equal_entropy, markdown, perplexity_of
from .uncertainty import Entries, difference_error, mean_nats, paired_difference, verdict

BASELINES = ("mdlm", "sedd-absorb", "sedd-uniform", "radd", "d3pm", "bd3lm-4", "bd3lm-16")

NEIGHBOR = (
    ("armd-neighbor", "ar", 1.0, None, "the neighbor query's perplexity over AR's, equal steps"),
    ("armd-neighbor-third", "ar-third", 1.03, None, "the same, both at 1/3 of the steps"),
    ("armd-neighbor", "armd", 1.0, "S=4", "the neighbor query over the prefix query, S=4"),
)
"""Ours: one run, another, the limit of their ratio, the kind of order (left to right), words."""


def claims_table(found: dict[str, dict[str, Any]]) -> str:
    """What was to be reached, what was, and whether it holds by the rule of uncertainty.py."""
    rows = []
    if "perplexity" in found:
        rows += quality(found["perplexity"])
    if "generation" in found:
        rows += parallel(found["generation"])
    return markdown(["claim", "to reach", "here", "verdict"], rows)


def quality(entries: Entries) -> list[list[str]]:
    rows = []
    if {"ar", "armd"} <= entries.keys():
        rows.append(
            at_most(entries, "armd", "ar", 1.02, "ARMD's perplexity over AR's, equal steps")
        )
    for one, other, limit, kind, claim in NEIGHBOR:
        if {one, other} <= entries.keys():
            claim += ", paired by seed"
            rows.append(shown(claim, limit, *paired_difference(entries, one, other, kind)))
    present = [name for name in BASELINES if name in entries]
    for run, words in (("armd-third", "ARMD"), ("armd-neighbor-third", "the neighbor query")):
        if present and run in entries:
            rows += a_third(entries, run, words, present)
    return rows


def a_third(entries: Entries, run: str, words: str, baselines: list[str]) -> list[list[str]]:
    """A run at a third of the steps against the best baselines at all of them."""
    best = min(baselines, key=lambda name: perplexity_of(entries, name))
    claim = f"{words} at 1/3 of the steps over the best diffusion baseline at all steps"
    rows = [at_most(entries, run, best, 1.0, f"{claim} ({LABELS[best]}, from scratch)")]
    masked = [name for name in baselines if not name.startswith("bd3lm")]
    if masked and len(masked) < len(baselines):
        best = min(masked, key=lambda name: perplexity_of(entries, name))
        claim += " that is no block diffusion"
        rows.append(at_most(entries, run, best, 1.0, f"{claim} ({LABELS[best]})"))
    return rows


def at_most(entries: Entries, one: str, other: str, limit: float, claim: str) -> list[str]:
    """The claim that one perplexity is at most `limit` times another."""
    gap = mean_nats(entries, one) - mean_nats(entries, other)
    return shown(claim, limit, gap, difference_error(entries, one, other))


def shown(claim: str, limit: float, gap: float, error: float | None) -> list[str]:
    """A line of the table, for a difference in nats."""
    ratio = f"{exp(gap):.3f}" + ("" if error is None else f" ± {exp(gap) * error:.3f}")
    return [claim, f"≤ {limit:.2f}", ratio, verdict(gap - log(limit), error)]


def parallel(entries: Entries) -> list[list[str]]:
    rows = []
    for judge, label in (("large", "SmolLM2"), ("own", "own judge")):
        key, noise = f"{judge}_perplexity", f"{judge}_error"
        one = entries.get("sbp-20 S=1", {}).get("figures", {})
        for s, limit in ((2, 1.05), (4, 1.10)):
            many = entries.get(f"sbp-20 S={s}", {}).get("figures", {})
            if key in one and key in many:
                ratio = at_equal_entropy(entries, judge, f"sbp-20 S={s}", "sbp-20 S=1")
                error = hypot(one[noise], many[noise])
                rows.append(
                    [
                        f"S={s} over S=1 at equal entropy, strided phase of 20 %, {label}",
                        f"≤ {limit:.2f}",
                        f"{ratio:.3f} ± {ratio * error:.3f}",
                        verdict(log(ratio / limit), error),
                    ]
                )
        four = entries.get("sbp-20 S=4", {}).get("figures", {})
        baselines = {
            name.split()[0]: f["figures"]
            for name, f in entries.items()
            if name.split()[0] in ("mdlm", "sedd-absorb")
            and key in f["figures"]
            and f["figures"]["calls"] <= 1.1 * four.get("calls", 0)
        }
        if baselines and key in four:
            best = min(baselines.values(), key=lambda f: f[key])
            ratio, error = best[key] / four[key], hypot(best[noise], four[noise])
            rows.append(
                [
                    f"{' and '.join(LABELS[name] for name in baselines)} with as many passes over "
                    f"ARMD with S=4, {label}",
                    "≥ 1.20",
                    f"{ratio:.2f} ± {ratio * error:.2f}",
                    verdict(log(1.2 / ratio), error),
                ]
            )
    return rows
