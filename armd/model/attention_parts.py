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


def parts_of_limits(limit: Int[Tensor, "b n"], copies: int, dtype: torch.dtype) -> Parts:
    """Where no key is moved: a group sees the keys up to the largest limit of its rows."""
    listed = []
    for rows in _groups(limit.amax(0)):
        seen = torch.arange(int(limit[:, rows].max()), device=limit.device)
        kept = seen < limit[:, rows, None]
        listed.append(_part(kept, rows, [slice(0, len(seen))], 0, copies, dtype))
    return Parts(None, None, copies, listed)


def cut_in_parts(
    limit: Int[Tensor, "b n"], times: Int[Tensor, "b n m"], copies: int, dtype: torch.dtype
) -> Parts:
    """`times`: how often a row moves a key, 0 if that is not on its right. Several texts are cut
    alike, in their own order."""
    rows = keys = None
    few = torch.int16  # a quarter of what indices take: there are rows times keys of them
    unseen = torch.arange(times.shape[2], device=limit.device) >= limit[..., None]
    moves = times.to(few).masked_fill(unseen, -1)
    cut = _cut(moves, _groups(limit.amax(0)))
    if len(times) == 1:
        # the further left, the more keys are on the right of a row, and the fewer rows on the left
        # of a key
        right = times[0] > 0
        rows_by_place = right.sum(1, dtype=torch.int32).argsort(descending=True, stable=True)
        groups = _groups(limit[0, rows_by_place])
        moved = moves[0].amax(1).clamp(0, 2)[rows_by_place].tolist()
        calls = sum(1 + max(moved[group]) for group in groups)
        if int(limit.sum()) + calls * CALL < _cost(cut):  # about what it costs at least
            keys_by_place = right.sum(0, dtype=torch.int32).argsort(stable=True)
            placed = moves[:, rows_by_place][..., keys_by_place]
            other = _cut(placed, groups)
            if _cost(other) < _cost(cut):
                rows, keys, moves, cut = rows_by_place, keys_by_place, placed, other
    listed = []
    for own, seen, k in cut:
        kept = torch.cat([moves[:, own, key] for key in seen], -1) == k
        listed.append(_part(kept, own, seen, k, copies, dtype))
    return Parts(rows, keys, copies, listed)


def _groups(count: Int[Tensor, "n"]) -> list[slice]:
    """Of rows that see so many keys each. A group ends where the next row sees far fewer: there a
    stream begins."""
    found, starts = [], (count.diff() < -GROUP).nonzero().flatten() + 1
    for first, last in pairwise([0, *starts.tolist(), len(count)]):
        pieces = max(1, round((last - first) / GROUP))
        cuts = [first + (last - first) * k // pieces for k in range(pieces + 1)]
        found += map(slice, cuts, cuts[1:])
    return found


def _cut(moves: Int[Tensor, "b n m"], groups: list[slice]) -> list[tuple[slice, list[slice], int]]:
    """Groups of rows, the keys that they see, and how often those are moved."""
    most = int(moves.max())
    found = [
        (rows, _runs((moves[:, rows] == k).any(1).any(0)), k)
        for rows in groups
        for k in range(most + 1)
    ]
    return [piece for piece in found if piece[1]]


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
    kept: Bool[Tensor, "b n m"],
    rows: slice,
    keys: list[slice],
    times: int,
    copies: int,
    dtype: torch.dtype,
) -> Part:
    """`kept`: which of these keys each row sees."""
    kept = kept[:, None].repeat_interleave(copies, 2)
    added = None if bool(kept.all()) else torch.zeros_like(kept, dtype=dtype)
    if added is not None:
        added.masked_fill_(~kept, -torch.inf)
    blind = ~kept.any(-1)
    rows = slice(rows.start * copies, rows.stop * copies)
    return Part(rows, keys, times, added, blind if bool(blind.any()) else None)
