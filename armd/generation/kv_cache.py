"""The cache: what the rows passed so far left behind, so that a block costs one small pass.

For each two-stream layer it holds the keys and values of the context rows (BOS and the tokens
drawn), for each layer above those of the query rows, and for prefix aggregation one running state.
Everything in it is of blocks already drawn, which is just what the rows of the next block may see:
decoding needs no mask, and cached equals full.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch

from ..model.layers import attention, bool_mask, rope_cos_sin
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Bool, Float, Int, Tensor
from ..native.structs import PointerTable, SequenceRowsFields, row_pointers


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

    @cached_property
    def places(self) -> list[tuple[PointerTable, PointerTable]]:
        """Where layer.c finds each text's keys and values, layer by layer."""
        batch = self.keys[0].shape[0]
        sides = ([row_pointers(s, batch) for s in side] for side in (self.keys, self.values))
        keys, values = ([PointerTable(*of_text) for of_text in zip(*s, strict=True)] for s in sides)
        return list(zip(keys, values, strict=True))

    def __getstate__(self) -> dict[str, object]:
        """What a copy takes over: all but addresses, which are not its own."""
        return {name: value for name, value in self.__dict__.items() if name != "places"}

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
    # of all places there are, not of these: a product of fewer rows can have other last bits
    places = max(length, config.max_length) + 2  # one more, for padding to stand at
    code = model.position_codes(places)
    turn = rope_cos_sin(torch.arange(places, device=like.device)[None], config)[0].to(like.dtype)
    return Cache(keys, values, code, turn, empty_mark(model, batch))


def empty_mark(model: ArmdLM, batch: int) -> Mark:
    """Where a cache starts."""
    width = model.config.d_pe if model.config.query == "prefix" else 1
    return Mark(0, 0, model.bos.new_zeros(batch, width, model.config.d_model))


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


@dataclass(frozen=True)
class Entry:
    """How a part's rows enter the layers of one kind."""

    cache: Cache
    rows: int
    """Of each text, and how many of them, the first ones, leave keys and values."""
    own: int
    start: int
    """Slots taken before."""
    count: int
    """Slots taken afterwards."""
    slot: Int[Tensor, "b m"] | None = None
    """Where keys go; None: from `start` on."""
    limit: Int[Tensor, "b r"] | None = None
    """How many slots each row sees; None: all `count`."""

    @property
    def batch(self) -> int:
        return self.cache.keys[0].shape[0]

    @cached_property
    def mask(self) -> Bool[Tensor, "b 1 r s"] | None:
        return None if self.limit is None else bool_mask(self.limit, self.count)

    def enter(self, index: int, made: Sequence[Tensor]) -> None:
        """Keep the keys and values of layer `index`."""
        stores = (self.cache.keys[index], self.cache.values[index])
        for store, rows in zip(stores, made, strict=True):
            rows = rows.view(store.shape[0], -1, *rows.shape[1:])
            if self.slot is None:
                store[:, self.start : self.count] = rows
            else:
                store[torch.arange(len(rows), device=rows.device)[:, None], self.slot] = rows

    def attend(self, index: int, query: Float[Tensor, "br h e"]) -> Float[Tensor, "br h e"]:
        """What the rows see in layer `index`; where only the last rows of each text look, they."""
        stores = (self.cache.keys[index], self.cache.values[index])
        keys, values = (store[:, : self.count] for store in stores)
        query = query.view(keys.shape[0], -1, *query.shape[1:])
        mask = "all" if self.mask is None else self.mask[:, :, -query.shape[1] :]
        return attention(query, keys, values, mask).flatten(0, 1)

    def texts(self, first: int) -> list[SequenceRowsFields]:
        """The same for layer `first` and those behind it, text by text, as layer.c is told it."""
        size = (self.rows, self.own, self.start, self.count)
        places = zip(self.cache.places, self._tables, strict=True)
        return [
            (k.from_layer(first), v.from_layer(first), *tables, *size) for (k, v), tables in places
        ]

    @cached_property
    def _tables(self) -> list[tuple[int | None, int | None]]:
        slots, limits = (row_pointers(table, self.batch) for table in self._laid_out)
        return list(zip(slots, limits, strict=True))

    @cached_property
    def _laid_out(self) -> tuple[Tensor | None, ...]:
        """Held here, because C is told their addresses alone."""
        return tuple(None if t is None else t.contiguous() for t in (self.slot, self.limit))
