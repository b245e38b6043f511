"""Figures of a text's own tokens: entropy, distinct n-grams, repetition."""

from math import log

NATS_IN_A_BIT = log(2)


def grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def distinct(rows: list[list[int]], n: int) -> float:
    """Different n-grams among all n-grams of all sequences."""
    found = [gram for ids in rows for gram in grams(ids, n)]
    return len(set(found)) / len(found) if found else 0.0


def repetition(ids: list[int], n: int = 4) -> float:
    """The share of n-grams that this sequence has said before."""
    found = grams(ids, n)
    return 1 - len(set(found)) / len(found) if found else 0.0


def text_figures(rows: list[list[int]]) -> dict[str, float]:
    """Means over sequences; distinct-n over all of them together."""
    from .entropy import mean_entropy

    rows = [ids for ids in rows if ids]
    bits = mean_entropy(rows)
    return {
        "entropy_bits": bits,
        "entropy_nats": bits * NATS_IN_A_BIT,
        **{f"distinct_{n}": distinct(rows, n) for n in (1, 2, 3, 4)},
        "repetition_4": sum(map(repetition, rows)) / max(1, len(rows)),
    }
