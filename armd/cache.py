"""The cache: what the rows passed so far left behind, so that a block costs one small pass.

For each two-stream layer it holds the keys and values of the context rows (BOS and the tokens
drawn), for each layer above those of the query rows, and for prefix aggregation one running state.
Everything in it is of blocks already drawn, which is just what the rows of the next block may see:
decoding needs no mask, and cached equals full.
"""

from dataclasses import dataclass, fields, replace
from typing import cast

import torch

from .layers import Layer, attention, bool_mask, turns
from .modeling_armd import ArmdLM
from .prefix import append_to_state, prefix_sums_in_blocks
from .shapes import Bool, Float, Int, Tensor


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
    if model.config.query == "shift":
        return _one_stream(model, cache, context, context_position, query_position, placing)
    key, query = cache.code[context_position], cache.code[query_position]
    if placing is not None:
        key = key * (placing.context_slot != cache.spare)[..., None]
    state = append_to_state(old.state, key, context)
    grown = (old.context + m, old.query + query_position.shape[1])
    cache.mark = Mark(*(grown if placing is None else (placing.context, placing.query)), state)
    turn = cache.turn[context_position]
    if placing is not None and old.context == 0:
        sums = prefix_sums_in_blocks(query, key, context, placing.strict_limit)
    else:
        sums = query @ state
    count = torch.full_like(query_position, cache.mark.context)
    first = model.start_query(sums, count if placing is None else placing.strict_limit)
    rows = torch.cat([context, first], 1)
    low, high = Entry(old.context, cache.mark.context), Entry(old.query, cache.mark.query)
    if placing is not None:
        limit = torch.cat([placing.context_limit, placing.strict_limit], 1)
        low = replace(low, slot=placing.context_slot, limit=limit)
        high = replace(high, slot=placing.query_slot, limit=placing.query_limit)
    query_turn = cache.turn[query_position]
    rows = _two_streams(model, cache, rows, torch.cat([turn, query_turn], 1), m, low)
    return model.norm(_causal(model, model.config.n_two_stream, cache, rows, query_turn, high))


def _one_stream(
    model: ArmdLM,
    cache: Cache,
    context: Float[Tensor, "b m d"],
    context_position: Int[Tensor, "b m"],
    query_position: Int[Tensor, "b m"],
    placing: Placing | None,
) -> Float[Tensor, "b m d"]:
    """The same with the shifted query: one row a token, which predicts the token after it."""
    start = cache.mark.context
    count = start + context.shape[1] if placing is None else placing.context
    cache.mark = replace(cache.mark, context=count)
    entry = Entry(start, count)
    if placing is not None:
        entry = replace(entry, slot=placing.context_slot, limit=placing.context_limit)
    # behind the last token of a shorter prompt stands padding: what it wants comes at the end
    wanted = query_position.where(query_position < cache.spare, query_position[:, -1:])
    rows = model.one_stream(context, cache.code, wanted)
    return model.norm(_causal(model, 0, cache, rows, cache.turn[context_position], entry))


@dataclass(frozen=True)
class Entry:
    """How rows enter the layers of one kind."""

    start: int
    """Slots taken before."""
    count: int
    """Slots taken afterwards."""
    slot: Int[Tensor, "b m"] | None = None
    """Where keys go; None: from `start` on."""
    limit: Int[Tensor, "b r"] | None = None
    """How many slots each row sees; None: all `count`."""

    def mask(self) -> Bool[Tensor, "b 1 r s"] | None:
        return None if self.limit is None else bool_mask(self.limit, self.count)


def _two_streams(
    model: ArmdLM,
    cache: Cache,
    rows: Float[Tensor, "b r d"],
    turn: Float[Tensor, "b r half 2"],
    m: int,
    entry: Entry,
) -> Float[Tensor, "b k d"]:
    """The m context rows and the query rows after them, side by side through each layer: all see
    the whole cache, the context rows just entered included."""
    mask, last = entry.mask(), model.config.n_two_stream - 1
    for index in range(last + 1):
        layer = cast(Layer, model.layers[index])
        skip = m if index == last else 0  # nothing above reads the context rows
        normed = layer.attention_norm(rows)
        _enter(cache, index, layer.keys_values(normed[:, :m], turn[:, :m]), entry)
        query = layer.queries(normed[:, skip:], turn[:, skip:])
        sight = None if mask is None else mask[:, :, skip:]
        rows = layer.finish(rows[:, skip:], _attend(cache, index, query, entry.count, sight))
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
    mask = entry.mask()
    for index in range(first, len(model.layers)):
        layer = cast(Layer, model.layers[index])
        normed = layer.attention_norm(rows)
        _enter(cache, index, layer.keys_values(normed, turn), entry)
        query = layer.queries(normed, turn)
        rows = layer.finish(rows, _attend(cache, index, query, entry.count, mask))
    return rows


def _enter(cache: Cache, index: int, made: tuple[Tensor, Tensor], entry: Entry) -> None:
    for store, rows in zip((cache.keys[index], cache.values[index]), made, strict=True):
        if entry.slot is None:
            store[:, entry.start : entry.count] = rows
        else:
            store[torch.arange(len(rows), device=rows.device)[:, None], entry.slot] = rows


def _attend(
    cache: Cache, index: int, query: Tensor, count: int, mask: Tensor | None
) -> Float[Tensor, "b r h e"]:
    keys, values = cache.keys[index][:, :count], cache.values[index][:, :count]
    return attention(query, keys, values, "all" if mask is None else mask)
