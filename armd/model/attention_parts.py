"""Which rows to take together, with which keys, so that few pairs are scored that no row sees.

Rows go in groups, each with only those keys that one of its rows sees. In generation order these
are the first so many. But where keys on the left and on the right of a row are treated apart, and
each group has rows of all streams, nearly every key is on both sides. By position a group is a part
of one stream: a key is on the left of all its rows, or on the right of all.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from .shapes import Bool, Float, Int, Tensor

GROUP = 64
"""Rows of a group."""
GAP = 32
"""So many keys between two others are taken along, though no row sees them, rather than cut out."""
CALL = 4096
"""A call of the kernel takes about as long as so many pairs."""


class Part(NamedTuple):
    """A group of rows, and the keys that one of them sees, all moved equally often."""

    rows: slice
    keys: list[slice]
    moves: int
    added: Float[Tensor, "b 1 n m"] | None
    """To scores: -inf where a row does not see a key; None if each sees all."""
    blind: Bool[Tensor, "b 1 n"] | None
    """Rows that see none of the keys; None if each sees one."""


@dataclass(frozen=True)
class Parts:
    """All that rows see. Each row is `copies` rows: one for each of the heads that read a key."""

    rows: Int[Tensor, "n"] | None
    """In which order rows are taken; None: in their own."""
    keys: Int[Tensor, "m"] | None
    copies: int
    listed: list[Part]
    """Those of a group follow one another, and the keys that are not moved come first."""


def cut_in_parts(
    seen: Bool[Tensor, "b n m"], times: Int[Tensor, "b n m"] | None, copies: int, dtype: torch.dtype
) -> Parts:
    """`times`: how often a row moves a key, 0 if that is not on its right; None: none is. Several
    texts are cut alike, in their own order."""
    rows = keys = None
    few = torch.int16  # a quarter of what indices take: there are rows times keys of them
    moves = torch.where(seen, 0 if times is None else times.to(few), -1).to(few)
    cut = _cut(moves)
    if times is not None and len(times) == 1:
        # the further left, the more keys are on the right of a row, and the fewer rows on the left
        # of a key
        right = times[0] > 0
        by_place = (
            right.sum(1).argsort(descending=True, stable=True),
            right.sum(0).argsort(stable=True),
        )
        placed = moves[:, by_place[0]][..., by_place[1]]
        other = _cut(placed)
        if _cost(other) < _cost(cut):
            (rows, keys), moves, cut = by_place, placed, other
    return Parts(rows, keys, copies, [_part(moves, *piece, copies, dtype) for piece in cut])


def _cut(moves: Int[Tensor, "b n m"]) -> list[tuple[slice, list[slice], int]]:
    """Groups of rows, the keys that they see, and how often those are moved. A group ends where the
    next row sees far fewer keys: there a stream begins."""
    found, most = [], int(moves.max())
    count = (moves >= 0).sum(2).amax(0)
    starts = (count.diff() < -GROUP).nonzero().flatten() + 1
    ends = [0, *starts.tolist(), len(count)]
    for first, last in pairwise(ends):
        pieces = max(1, round((last - first) / GROUP))
        cuts = [first + (last - first) * k // pieces for k in range(pieces + 1)]
        for rows in map(slice, cuts, cuts[1:]):
            for k in range(most + 1):
                if keys := _runs((moves[:, rows] == k).any(1).any(0)):
                    found.append((rows, keys, k))
    return found


def _runs(seen: Bool[Tensor, "m"]) -> list[slice]:
    """Where the keys are that are seen."""
    at = seen.nonzero().flatten()
    if not len(at):
        return []
    last = (at.diff() > GAP).nonzero().flatten()
    starts = at[torch.cat([last.new_zeros(1), last + 1])]
    ends = at[torch.cat([last, last.new_tensor([len(at) - 1])])] + 1
    return [slice(*pair) for pair in torch.stack([starts, ends], 1).tolist()]


def _cost(cut: list[tuple[slice, list[slice], int]]) -> int:
    """Pairs of a row and a key that are scored; a call of the kernel costs as much as some."""
    return sum((rows.stop - rows.start) * sum(lengths(keys)) + CALL for rows, keys, _ in cut)


def lengths(keys: list[slice]) -> list[int]:
    return [key.stop - key.start for key in keys]


def _part(
    moves: Tensor, rows: slice, keys: list[slice], times: int, copies: int, dtype: torch.dtype
) -> Part:
    kept = torch.cat([moves[:, rows, key] for key in keys], -1) == times
    kept = kept[:, None].repeat_interleave(copies, 2)
    added = None if bool(kept.all()) else torch.zeros_like(kept, dtype=dtype)
    if added is not None:
        added.masked_fill_(~kept, -torch.inf)
    blind = ~kept.any(-1)
    rows = slice(rows.start * copies, rows.stop * copies)
    return Part(rows, keys, times, added, blind if bool(blind.any()) else None)
