"""How sure is a figure of the study? Standard errors, and the rule by which a claim is decided.

A loss varies from seed to seed and, if it is a bound, from draw to draw. A model that was trained
once is taken to vary from seed to seed as much as those that were trained several times do. A claim
holds if the figure is on the right side of its limit by two standard errors, does not hold if it is
on the wrong side by two, and is not decided otherwise, or if no error is known.
"""

from __future__ import annotations

import re
import statistics
from math import hypot, sqrt
from typing import Any

Entries = dict[str, Any]
CERTAIN = 2.0
"""Standard errors that decide a claim or a rank."""


def by_seed(entries: Entries, name: str) -> dict[int, dict[str, Any]]:
    """The figures of a run with every seed, the first seed's first; of this recipe and dataset
    alone."""
    same = re.compile(rf"{re.escape(name)}(?:-seed(\d+))?")
    found = {
        int(match[1] or 0): entry["figures"]
        for key, entry in entries.items()
        if (match := same.fullmatch(key)) and recipe_of(entry) == recipe_of(entries[name])
    }
    return dict(sorted(found.items()))


def seeds_of(entries: Entries, name: str) -> list[dict[str, Any]]:
    return list(by_seed(entries, name).values())


def recipe_of(entry: dict[str, Any]) -> list[Any]:
    return [entry.get("facts", {}).get(fact) for fact in ("steps", "batch", "length", "data")]


def nats(figures: dict[str, Any]) -> float:
    """The figure a model is compared by: left to right, or its bound."""
    return figures["bound"] if "bound" in figures else figures["left to right"]


def seed_spread(entries: Entries) -> float | None:
    """Standard deviation of a loss from seed to seed, in nats, pooled over the runs that were
    trained with several; None if none was."""
    squares, degrees = 0.0, 0
    for name in entries:
        values = [nats(figures) for figures in seeds_of(entries, name)]
        if "-seed" not in name and len(values) > 1:
            squares += statistics.variance(values) * (len(values) - 1)
            degrees += len(values) - 1
    return sqrt(squares / degrees) if degrees else None


def standard_error(
    entries: Entries, name: str, kind: str | None = None, pooled: float | None = None
) -> float | None:
    """Of the mean loss of a run over its seeds, in nats; None where there is no estimate. `pooled`
    is the spread of seeds, if these entries have none of their own."""
    figures = seeds_of(entries, name)
    values = [nats(f) if kind is None else f[kind] for f in figures if kind is None or kind in f]
    spread = statistics.stdev(values) if len(values) > 1 else seed_spread(entries) or pooled
    if spread is None or not values:
        return None
    draws = figures[0].get("standard_error", 0.0)
    return hypot(spread, draws) / sqrt(len(values))


def difference_error(entries: Entries, one: str, two: str) -> float | None:
    errors = [standard_error(entries, name) for name in (one, two)]
    return None if None in errors else hypot(*errors)  # type: ignore[arg-type]


def paired_difference(
    entries: Entries, one: str, two: str, kind: str | None = None
) -> tuple[float, float | None]:
    """Mean over seeds of how much greater one run's loss is than another's of the same seed, which
    saw the same text in the same order; and its standard error."""
    first, second = by_seed(entries, one), by_seed(entries, two)
    pairs = [(figures, second[seed]) for seed, figures in first.items() if seed in second]
    gaps = [nats(a) - nats(b) if kind is None else a[kind] - b[kind] for a, b in pairs]
    error = statistics.stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else None
    return statistics.mean(gaps), error


def verdict(excess: float, error: float | None) -> str:
    """Of a claim that `excess`, in nats above the limit, is not above 0."""
    if error is None or abs(excess) < CERTAIN * error:
        return "not decided"
    return "holds" if excess <= 0 else "**does not hold**"


def rank(entries: Entries, name: str, among: list[str]) -> str:
    """The places that a model may have, by losses that differ by two standard errors."""
    better = worse = 0
    for other in among:
        if other != name:
            gap = mean_nats(entries, other) - mean_nats(entries, name)
            found = verdict(gap, difference_error(entries, name, other))
            better += found == "holds"
            worse += found == "**does not hold**"
    first, last = 1 + better, len(among) - worse
    return str(first) if first == last else f"{first} to {last}"


def mean_nats(entries: Entries, name: str) -> float:
    """The mean loss over seeds."""
    return statistics.mean(nats(figures) for figures in seeds_of(entries, name))
