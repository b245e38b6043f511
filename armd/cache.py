"""The cache: what the rows passed so far left behind, so that a block costs one small pass.

For each two-stream layer it holds the keys and values of the context rows (BOS and the tokens
drawn), for each layer above those of the query rows, and for prefix aggregation one running state.
Everything in it is of blocks already drawn, which is just what the rows of the next block may see:
decoding needs no mask, and cached equals full.
"""

from dataclasses import dataclass, fields, replace
from typing import cast

import torch

from .layers import Entry, Layer, turns
from .modeling_armd import ArmdLM
from .prefix import append_to_state, prefix_sums_in_blocks
from .shapes import Float, Int, Tensor


@dataclass(frozen=True)
class Mark:
    """A point to rewind to: context rows, query rows and the prefix state at that time."""

    context: int
    query: int
    state: Float[Tensor, "b p d"]


@dataclass
class Cache:
    """Keys and values (batch, slots, heads, width) of every layer, preallocated. What stands in
    slots past `mark.context` or `mark.query` is free to be written over."""

    keys: list[Float[Tensor, "b s h e"]]
    values: list[Float[Tensor, "b s h e"]]
    code: Float[Tensor, "n p"]
    """Position codes and turns of every place, made once."""
    turn: Float[Tensor, "n half 2"]
    mark: Mark

    def rewind(self, mark: Mark) -> None:
        """Forget all rows entered since `mark` was read off."""
        self.mark = mark

    @property
    def spare(self) -> int:
        """The slot of rows that only pad a batch; nothing ever sees it."""
        return self.keys[0].shape[1] - 1

    def bytes(self) -> int:
        parts = [*self.keys, *self.values, self.mark.state]
        return sum(part.numel() * part.element_size() for part in parts)


def make_cache(model: ArmdLM, *, batch: int, length: int) -> Cache:
    """An empty cache for texts of up to `length` tokens: 2 * n_layers * batch * (length + 2) *
    d_model numbers, and a state of batch * d_pe * d_model."""
    config, like = model.config, model.bos
    shape = (batch, length + 2, config.n_heads, config.d_head)
    # zeros, not garbage: a masked slot still multiplies, and 0 * NaN is NaN
    keys, values = ([like.new_zeros(shape) for _ in model.layers] for _ in range(2))
    code = model.codes(length + 2)  # one more place, for padding to stand at
    turn = turns(torch.arange(length + 2, device=like.device)[None], config)[0].to(like.dtype)
    state = like.new_zeros(batch, code.shape[1], config.d_model)
    return Cache(keys, values, code, turn, Mark(0, 0, state))


@dataclass(frozen=True)
class Placing:
    """For rows that are not simply next, or do not see simply all: a prefill, or a batch of unlike
    rows. Slots say where in the cache a row's keys go, limits how many slots it sees."""

    context_slot: Int[Tensor, "b m"]
    context_limit: Int[Tensor, "b m"]
    strict_limit: Int[Tensor, "b k"]
    """Of the context rows, for the query rows."""
    query_slot: Int[Tensor, "b k"]
    query_limit: Int[Tensor, "b k"]
    context: int
    """How many slots are in use afterwards, in the longest row."""
    query: int

    def to(self, device: torch.device) -> "Placing":
        moved = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if f.name not in ("context", "query")
        }
        return replace(self, **moved)


def advance(
    model: ArmdLM,
    cache: Cache,
    context: Float[Tensor, "b m d"],
    context_position: Int[Tensor, "b m"],
    query_position: Int[Tensor, "b k"],
    placing: Placing | None = None,
) -> Float[Tensor, "b k d"]:
    """One fused pass: the context rows of what was just drawn, and the query rows of the next
    block. Without a placing all of them enter next and see everything. Returns the final query
    rows. Positions count BOS as 0, so tokens stand at 1..n."""
    m, old = context_position.shape[1], cache.mark
    key, query = cache.code[context_position], cache.code[query_position]
    if placing is not None:
        key = key * (placing.context_slot != cache.spare)[..., None]
    state = append_to_state(old.state, key, context)
    grown = (old.context + m, old.query + query_position.shape[1])
    cache.mark = Mark(*(grown if placing is None else (placing.context, placing.query)), state)
    turn = cache.turn[context_position]
    if model.config.query == "shift":
        entry = Entry(m, old.context, cache.mark.context)
        if placing is not None:
            entry = replace(entry, slot=placing.context_slot, limit=placing.context_limit)
        return model.norm(_causal(model, 0, cache, context, turn, entry))
    if placing is not None and old.context == 0:
        sums = prefix_sums_in_blocks(query, key, context, placing.strict_limit)
    else:
        sums = query @ state
    count = torch.full_like(query_position, cache.mark.context)
    first = model.start_query(sums, count if placing is None else placing.strict_limit)
    rows = torch.cat([context, first], 1)
    low = Entry(m, old.context, cache.mark.context)
    high = Entry(query_position.shape[1], old.query, cache.mark.query)
    if placing is not None:
        limit = torch.cat([placing.context_limit, placing.strict_limit], 1)
        low = replace(low, slot=placing.context_slot, limit=limit)
        high = replace(high, slot=placing.query_slot, limit=placing.query_limit)
    query_turn = cache.turn[query_position]
    rows = _two_streams(model, cache, rows, torch.cat([turn, query_turn], 1), low)
    return model.norm(_causal(model, model.config.n_two_stream, cache, rows, query_turn, high))


def _two_streams(
    model: ArmdLM,
    cache: Cache,
    rows: Float[Tensor, "b r d"],
    turn: Float[Tensor, "b r half 2"],
    entry: Entry,
) -> Float[Tensor, "b k d"]:
    """Context rows and the query rows after them, side by side through each layer: all see
    the whole cache, the context rows just entered included."""
    last = model.config.n_two_stream - 1
    for index in range(last + 1):
        layer, store = cast(Layer, model.layers[index]), (cache.keys[index], cache.values[index])
        skip = entry.own if index == last else 0  # nothing above reads the context rows
        rows = layer.decode(rows, turn, *store, entry, skip=skip)
    return rows


def _causal(
    model: ArmdLM,
    first: int,
    cache: Cache,
    rows: Float[Tensor, "b k d"],
    turn: Float[Tensor, "b k half 2"],
    entry: Entry,
) -> Float[Tensor, "b k d"]:
    """The layers from `first` on, on one stream."""
    for index in range(first, len(model.layers)):
        layer, store = cast(Layer, model.layers[index]), (cache.keys[index], cache.values[index])
        rows = layer.decode(rows, turn, *store, entry)
    return rows
