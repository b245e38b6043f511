"""The paper's claims, each checked against the study's own figures."""

from __future__ import annotations

from typing import Any

from .tables import LABELS, at_equal_entropy, markdown, perplexity_of

RIVALS = ("mdlm", "sedd-absorb", "sedd-uniform", "radd", "d3pm", "bd3lm-4", "bd3lm-16")


def claims_table(found: dict[str, dict[str, Any]]) -> str:
    """What was to be reached, what was, and whether it holds."""
    rows = []
    if "perplexity" in found:
        rows += quality(found["perplexity"])
    if "generation" in found:
        rows += parallel(found["generation"])
    return markdown(["claim", "to reach", "here", "holds"], rows)


def row(claim: str, limit: str, value: str, holds: bool) -> list[str]:
    return [claim, limit, value, "yes" if holds else "**no**"]


def quality(entries: dict[str, Any]) -> list[list[str]]:
    rows = []
    if {"ar", "armd"} <= entries.keys():
        ratio = perplexity_of(entries, "armd") / perplexity_of(entries, "ar")
        rows.append(
            row("ARMD's perplexity over AR's, equal steps", "≤ 1.02", f"{ratio:.3f}", ratio <= 1.02)
        )
    present = [name for name in RIVALS if name in entries]
    if present and "armd-third" in entries:
        best = min(present, key=lambda name: perplexity_of(entries, name))
        ours, theirs = perplexity_of(entries, "armd-third"), perplexity_of(entries, best)
        rows.append(
            row(
                "ARMD at 1/3 of the steps over the best diffusion rival "
                f"at all steps ({LABELS[best]})",
                "≤ 1.00",
                f"{ours:.1f} / {theirs:.1f} = {ours / theirs:.3f}",
                ours <= theirs,
            )
        )
    return rows


def parallel(entries: dict[str, Any]) -> list[list[str]]:
    rows = []
    for judge, label in (("large", "SmolLM2"), ("own", "own judge")):
        key, noise = f"{judge}_perplexity", f"{judge}_error"
        one = entries.get("sbp-20 S=1", {}).get("figures", {})
        for s, limit in ((2, 1.05), (4, 1.10)):
            many = entries.get(f"sbp-20 S={s}", {}).get("figures", {})
            if key in one and key in many:
                ratio = at_equal_entropy(entries, judge, f"sbp-20 S={s}", "sbp-20 S=1")
                error = (one[noise] ** 2 + many[noise] ** 2) ** 0.5
                rows.append(
                    row(
                        f"S={s} over S=1 at equal entropy, strided phase of 20 %, {label}",
                        f"≤ {limit:.2f}",
                        f"{ratio:.3f} ± {error:.3f}",
                        ratio <= limit,
                    )
                )
        four = entries.get("sbp-20 S=4", {}).get("figures", {})
        rivals = {
            name.split()[0]: f["figures"][key]
            for name, f in entries.items()
            if name.split()[0] in ("mdlm", "sedd-absorb")
            and key in f["figures"]
            and f["figures"]["calls"] <= 1.1 * four.get("calls", 0)
        }
        if rivals and key in four:
            rows.append(
                row(
                    f"{' and '.join(LABELS[name] for name in rivals)} with as many passes over "
                    f"ARMD with S=4, {label}",
                    "far above 1",
                    f"{min(rivals.values()) / four[key]:.2f}",
                    min(rivals.values()) > 1.2 * four[key],
                )
            )
    return rows
