"""Texts of unequal length together: sorted by length, filled up on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model.shapes import Int, Tensor


def in_batches(lengths: Sequence[int], batch: int, *, least: int = 1) -> Iterator[list[int]]:
    """Places of texts of like length, the longest first; those below `least` are left out."""
    places = [place for place, length in enumerate(lengths) if length >= least]
    places.sort(key=lambda place: -lengths[place])
    for start in range(0, len(places), batch):
        yield places[start : start + batch]


def filled(rows: Sequence[list[int]]) -> Int[Tensor, "b n"]:
    """One tensor; behind a row's end stand zeros, which nothing before them can see."""
    import torch

    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for place, row in zip(ids, rows, strict=True):
        place[: len(row)] = torch.tensor(row)
    return ids
