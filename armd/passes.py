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
from .layers import Layer
from .modeling_armd import ArmdLM
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


@torch.no_grad()
def advance_together(model: ArmdLM, parts: Sequence[Part]) -> list[Tensor]:
    """One pass of several caches. Returns the final query rows of each."""
    lanes, shift = _lanes(parts), model.config.query == "shift"
    moves = [_shift_move(part) if shift else _move(part) for part in parts]
    low, high = [move.low for move in moves], [move.high for move in moves]
    turn = _flat([move.turn for move in moves])
    rows = _flat([part.context for part in parts])
    if shift:
        sizes, rows = lanes.contexts, _causal(model, 0, high, rows, turn, lanes.contexts)
    else:
        both = rows.new_empty(1, sum(lanes.both), rows.shape[2])
        both[:, lanes.context] = rows
        both[:, lanes.query] = model.start_query(
            _flat([move.sums for move in moves]), _flat([move.count for move in moves])
        )
        rows = _two_streams(model, low, both, turn, lanes)
        first, sizes = model.config.n_two_stream, lanes.queries
        rows = _causal(model, first, high, rows, turn[:, lanes.query], sizes)
    final = zip(model.norm(rows)[0].split(sizes), parts, strict=True)
    return [rows.view(part.context.shape[0], -1, rows.shape[1]) for rows, part in final]


@dataclass(frozen=True)
class Move:
    """A part on its way: the sums its query rows start from, over how many context rows each, the
    turns of all its rows, and how they enter the layers."""

    sums: Float[Tensor, "b k d"]
    count: Int[Tensor, "b k"]
    turn: Float[Tensor, "b r half 2"]
    low: Entry
    high: Entry


def _move(part: Part) -> Move:
    """Mark what the part enters, and ask the prefix state for its query rows."""
    cache, placing, old = part.cache, part.placing, part.cache.mark
    m, k = part.context_position.shape[1], part.query_position.shape[1]
    key, query = cache.code[part.context_position], cache.code[part.query_position]
    if placing is not None:
        key = key * (placing.context_slot != cache.spare)[..., None]
    state = append_to_state(old.state, key, part.context)
    grown = (old.context + m, old.query + k)
    cache.mark = Mark(*(grown if placing is None else (placing.context, placing.query)), state)
    if placing is not None and old.context == 0:
        sums = prefix_sums_in_blocks(query, key, part.context, placing.strict_limit)
    else:
        sums = query @ state
    if placing is None:
        count = torch.full_like(part.query_position, cache.mark.context)
    else:
        count = placing.strict_limit
    low = Entry(cache, old.context, cache.mark.context)
    high = Entry(cache, old.query, cache.mark.query)
    if placing is not None:
        limit = torch.cat([placing.context_limit, placing.strict_limit], 1)
        low = replace(low, slot=placing.context_slot, limit=limit)
        high = replace(high, slot=placing.query_slot, limit=placing.query_limit)
    turn = cache.turn[torch.cat([part.context_position, part.query_position], 1)]
    return Move(sums, count, turn, low, high)


def _shift_move(part: Part) -> Move:
    """Of an autoregressive model: there are only context rows."""
    cache, placing, old = part.cache, part.placing, part.cache.mark
    m = part.context_position.shape[1]
    count = old.context + m if placing is None else placing.context
    cache.mark = Mark(count, 0, old.state)
    entry = Entry(cache, old.context, count)
    if placing is not None:
        entry = replace(entry, slot=placing.context_slot, limit=placing.context_limit)
    none, turn = part.query_position[:, :0], cache.turn[part.context_position]
    return Move(part.context[:, :0], none, turn, entry, entry)


@dataclass(frozen=True)
class Lanes:
    """Where the rows of all parts stand when they are laid end to end, text by text, each text's
    context rows before its query rows."""

    contexts: list[int]
    """How many context rows each part has; then query rows, and both."""
    queries: list[int]
    both: list[int]
    context: Int[Tensor, "m"]
    """Which of all rows are context rows, and which query rows."""
    query: Int[Tensor, "k"]


def _lanes(parts: Sequence[Part]) -> Lanes:
    kinds: list[bool] = []
    for part in parts:
        (batch, m), k = part.context_position.shape, part.query_position.shape[1]
        kinds += ([True] * m + [False] * k) * batch
    kind, device = torch.tensor(kinds), parts[0].context.device
    contexts = [part.context_position.numel() for part in parts]
    queries = [part.query_position.numel() for part in parts]
    both = [m + k for m, k in zip(contexts, queries, strict=True)]
    where = (which.nonzero()[:, 0].to(device) for which in (kind, ~kind))
    return Lanes(contexts, queries, both, *where)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten(0, 1) for part in parts])[None]


def _two_streams(
    model: ArmdLM,
    entries: Sequence[Entry],
    rows: Float[Tensor, "1 n d"],
    turn: Float[Tensor, "1 n half 2"],
    lanes: Lanes,
) -> Float[Tensor, "1 k d"]:
    """Context rows and query rows side by side through each layer: all see the whole cache of
    their text, the context rows just entered included."""
    last, context_turn = model.config.n_two_stream - 1, turn[:, lanes.context]
    for index in range(last + 1):
        layer = cast(Layer, model.layers[index])
        normed = layer.attention_norm(rows)
        made = layer.keys_values(normed[:, lanes.context], context_turn)
        _enter(entries, index, made, lanes.contexts)
        sizes = lanes.both
        if index == last:  # nothing above reads the context rows
            rows, normed, turn = (t[:, lanes.query] for t in (rows, normed, turn))
            sizes = lanes.queries
        rows = layer.finish(rows, _attend(entries, index, layer.queries(normed, turn), sizes))
    return rows


def _causal(
    model: ArmdLM,
    first: int,
    entries: Sequence[Entry],
    rows: Float[Tensor, "1 k d"],
    turn: Float[Tensor, "1 k half 2"],
    sizes: Sequence[int],
) -> Float[Tensor, "1 k d"]:
    """The layers from `first` on, on one stream."""
    for index in range(first, len(model.layers)):
        layer = cast(Layer, model.layers[index])
        normed = layer.attention_norm(rows)
        _enter(entries, index, layer.keys_values(normed, turn), sizes)
        rows = layer.finish(rows, _attend(entries, index, layer.queries(normed, turn), sizes))
    return rows


def _enter(
    entries: Sequence[Entry], index: int, made: tuple[Tensor, Tensor], sizes: Sequence[int]
) -> None:
    parts = zip(*(rows[0].split(sizes) for rows in made), strict=True)
    for entry, part in zip(entries, parts, strict=True):
        entry.enter(index, part)


def _attend(
    entries: Sequence[Entry], index: int, query: Float[Tensor, "1 n h e"], sizes: Sequence[int]
) -> Float[Tensor, "1 n h e"]:
    parts = zip(entries, query[0].split(sizes), strict=True)
    seen = [entry.attend(index, part) for entry, part in parts]
    return (seen[0] if len(seen) == 1 else torch.cat(seen))[None]
