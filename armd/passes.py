"""A pass: the rows of one block of each text that is being written, through every weight together.

The context rows of what was just drawn and the query rows of the next block go side by side; each
looks into the cache of its own text. Texts of unlike lengths and blocks share a pass without any
padding, and only products row by row are shared: a text gets what it would get alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from .cache import Cache, Entry, Mark, Placing
from .fast import FastLayer
from .layers import Layer
from .modeling_armd import ArmdLM
from .native import Text
from .prefix import append_to_state, prefix_sums_in_blocks
from .shapes import Float, Int, Tensor


@dataclass(frozen=True)
class Part:
    """What one cache takes part with in a pass: the context rows of what was just drawn, and the
    query rows of the next block. Without a placing all of them enter next and see everything.
    Positions count BOS as 0, so tokens stand at 1..n."""

    cache: Cache
    context: Float[Tensor, "b m d"]
    context_position: Int[Tensor, "b m"]
    query_position: Int[Tensor, "b k"]
    placing: Placing | None = None

    @property
    def rows(self) -> int:
        """Of each text."""
        return self.context_position.shape[1] + self.query_position.shape[1]


def advance(
    model: ArmdLM,
    cache: Cache,
    context: Float[Tensor, "b m d"],
    context_position: Int[Tensor, "b m"],
    query_position: Int[Tensor, "b k"],
    placing: Placing | None = None,
) -> Float[Tensor, "b k d"]:
    """One fused pass of one cache. Returns the final query rows."""
    part = Part(cache, context, context_position, query_position, placing)
    return advance_together(model, [part])[0]


FEW = 128
"""A part with more rows a text than this, the prefill of a long prompt, passes on its own: layer.c
is for few, and what the others get must not depend on who comes along."""


@torch.no_grad()
def advance_together(model: ArmdLM, parts: Sequence[Part]) -> list[Tensor]:
    """One pass of several caches. Returns the final query rows of each."""
    few = [part for part in parts if part.rows <= FEW]
    if len(few) < len(parts) > 1:
        passed = iter(advance_together(model, few) if few else [])
        return [next(passed) if p.rows <= FEW else advance_together(model, [p])[0] for p in parts]
    shift = model.config.query == "shift"
    moves = [_shift_move(model, part) for part in parts] if shift else _moves(model, parts)
    rows, turn = (_flat([getattr(m, name) for m in moves]) for name in ("rows", "turn"))
    low, high = (_crossing([getattr(m, name) for m in moves]) for name in ("low", "high"))
    first = 0
    if not shift:
        first = model.config.n_two_stream
        for index in range(first):
            # nothing above the two streams reads the context rows
            rows = _through(model, index, rows, turn, low, last=index == first - 1)
        turn = turn[:, low.others]
    for index in range(first, len(model.layers)):
        rows = _through(model, index, rows, turn, high)
    final = zip(model.norm(rows)[0].split(high.sizes), parts, strict=True)
    return [rows.view(len(part.context), -1, rows.shape[1]) for rows, part in final]


@dataclass(frozen=True)
class Move:
    """A part on its way: its first rows, their turns, and how they enter the layers."""

    rows: Float[Tensor, "b r d"]
    turn: Float[Tensor, "b r half 2"]
    low: Entry
    high: Entry


def _moves(model: ArmdLM, parts: Sequence[Part]) -> list[Move]:
    """All parts on their way; their query rows start together from what each state gives them."""
    old = [part.cache.mark for part in parts]
    sums = [_take_in(part) for part in parts]
    first = model.start_query(_flat(sums), _flat([_strict_limit(part) for part in parts]))[0]
    each = first.split([part.query_position.numel() for part in parts])
    return [_move(*given) for given in zip(parts, old, each, strict=True)]


def _take_in(part: Part) -> Float[Tensor, "b k d"]:
    """Add the context rows to the prefix state and mark what the part enters. Returns what its
    query rows sum up."""
    cache, placing, old = part.cache, part.placing, part.cache.mark
    m, k = part.context_position.shape[1], part.query_position.shape[1]
    key, query = cache.code[part.context_position], cache.code[part.query_position]
    if placing is not None:
        key = key * (placing.context_slot != cache.spare)[..., None]
    state = append_to_state(old.state, key, part.context)
    grown = (old.context + m, old.query + k)
    cache.mark = Mark(*(grown if placing is None else (placing.context, placing.query)), state)
    if placing is not None and old.context == 0:
        return prefix_sums_in_blocks(query, key, part.context, placing.strict_limit)
    return query @ state


def _strict_limit(part: Part) -> Int[Tensor, "b k"]:
    """How many context rows each query row sums up."""
    if part.placing is not None:
        return part.placing.strict_limit
    return torch.full_like(part.query_position, part.cache.mark.context)


def _move(part: Part, old: Mark, first: Float[Tensor, "bk d"]) -> Move:
    """Where the rows enter, from the mark before them to the one behind."""
    cache, placing = part.cache, part.placing
    (batch, m), k = part.context_position.shape, part.query_position.shape[1]
    low = Entry(cache, m + k, m, old.context, cache.mark.context)
    high = Entry(cache, k, k, old.query, cache.mark.query)
    if placing is not None:
        limit = torch.cat([placing.context_limit, placing.strict_limit], 1)
        low = replace(low, slot=placing.context_slot, limit=limit)
        high = replace(high, slot=placing.query_slot, limit=placing.query_limit)
    turn = cache.turn[torch.cat([part.context_position, part.query_position], 1)]
    rows = torch.cat([part.context, first.view(batch, k, -1)], 1)
    return Move(rows, turn, low, high)


def _shift_move(model: ArmdLM, part: Part) -> Move:
    """With the shifted query there are only context rows; each predicts the token after it."""
    cache, placing, old = part.cache, part.placing, part.cache.mark
    m = part.context_position.shape[1]
    count = old.context + m if placing is None else placing.context
    cache.mark = Mark(count, 0, old.state)
    entry = Entry(cache, m, m, old.context, count)
    if placing is not None:
        entry = replace(entry, slot=placing.context_slot, limit=placing.context_limit)
    # behind the last token of a shorter prompt stands padding: what it wants comes at the end
    wanted = part.query_position.where(
        part.query_position < cache.spare, part.query_position[:, -1:]
    )
    rows = model.one_stream(part.context, cache.code, wanted)
    turn = model.one_stream_turn(cache.turn[part.context_position], cache.turn[wanted])
    return Move(rows, turn, entry, entry)


@dataclass(frozen=True)
class Crossing:
    """How the rows of all parts go through the layers of one kind, laid end to end, text by text.
    Of each text the first rows leave keys and values in its cache."""

    entries: list[Entry]
    sizes: list[int]
    """How many rows each part has, and how many of them leave keys."""
    owns: list[int]
    own: Int[Tensor, "m"] | slice
    """Which of all rows leave keys, and which do not."""
    others: Int[Tensor, "k"] | slice

    def enter(self, index: int, made: tuple[Tensor, Tensor]) -> None:
        parts = zip(*(rows[0].split(self.owns) for rows in made), strict=True)
        for entry, part in zip(self.entries, parts, strict=True):
            entry.enter(index, part)

    def attend(
        self, index: int, query: Float[Tensor, "1 n h e"], sizes: list[int]
    ) -> Float[Tensor, "1 n h e"]:
        parts = zip(self.entries, query[0].split(sizes), strict=True)
        seen = [entry.attend(index, part) for entry, part in parts]
        return (seen[0] if len(seen) == 1 else torch.cat(seen))[None]

    def texts(self, index: int) -> list[Text]:
        """The same, as layer.c is told it."""
        return [text for entry in self.entries for text in entry.texts(index)]


def _crossing(entries: list[Entry]) -> Crossing:
    sizes = [entry.batch * entry.rows for entry in entries]
    owns = [entry.batch * entry.own for entry in entries]
    if sizes == owns:
        return Crossing(entries, sizes, owns, slice(None), slice(0, 0))
    kinds: list[bool] = []
    for entry in entries:
        kinds += ([True] * entry.own + [False] * (entry.rows - entry.own)) * entry.batch
    kind, device = torch.tensor(kinds), entries[0].cache.turn.device
    own, others = (which.nonzero()[:, 0].to(device) for which in (kind, ~kind))
    return Crossing(entries, sizes, owns, own, others)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten(0, 1) for part in parts])[None]


def _through(
    model: ArmdLM,
    index: int,
    rows: Float[Tensor, "1 n d"],
    turn: Float[Tensor, "1 n half 2"],
    crossing: Crossing,
    *,
    last: bool = False,
) -> Float[Tensor, "1 k d"]:
    """One layer: some rows leave keys and values, then all see the whole cache of their text, what
    just entered included. At the `last` of its kind those that left keys go no further."""
    layer = cast(Layer, model.layers[index])
    few = max(entry.rows for entry in crossing.entries) <= FEW
    if isinstance(layer, FastLayer) and layer.fits and few:
        return layer.through(rows, turn, crossing.texts(index), last=last)
    normed, own = layer.attention_norm(rows), crossing.own
    crossing.enter(index, layer.keys_values(normed[:, own], turn[:, own]))
    sizes = crossing.sizes
    if last:
        rows, normed, turn = (t[:, crossing.others] for t in (rows, normed, turn))
        sizes = [size - left for size, left in zip(sizes, crossing.owns, strict=True)]
    seen = crossing.attend(index, layer.queries(normed, turn), sizes)
    return layer.finish(rows, seen)
