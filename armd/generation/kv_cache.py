"""The KV cache: what the rows passed so far left behind, so that a block costs one small pass.

For each two-stream layer it holds the keys and values of the context rows (BOS and the tokens
drawn), for each layer above those of the query rows, and for prefix aggregation one running state.
With query="shift" or "neighbor" all layers keep those of the context rows. Everything in it is of
blocks already drawn, which is just what the rows of the next block may see: decoding needs no mask,
and cached equals full. A row's slot is its place in generation order, in the context after BOS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod

import torch

from ..model.layers import Adapted, Mask, attention, bool_mask, rope_cos_sin
from ..model.limited_attention import LimitMask, RightKeys
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Int, Tensor
from ..native.huge_pages import PAGE, Arena
from ..runtime.memory import check_cache


@dataclass(eq=False)
class KVCache:
    """Keys and values of every layer, preallocated, of a batch of sequences that take equal steps.
    A slot is written before it is read: what an earlier sequence left there does not matter."""

    keys: list[Float[Tensor, "b s h e"]]
    values: list[Float[Tensor, "b s h e"]]
    prefix_state: Float[Tensor, "b p d"]
    code: Float[Tensor, "n p"]
    """Position codes and RoPE of every position, made once."""
    rope: Float[Tensor, "m half 2"]
    prefix_rows: int = 0
    """query="neighbor": how many context rows the prefix state sums over so far."""

    @property
    def batch(self) -> int:
        return len(self.prefix_state)

    def clear(self) -> None:
        """Forget the sequence that was here."""
        self.prefix_state.zero_()
        self.prefix_rows = 0

    def take(self, other: KVCache, slots: int) -> None:
        """Begin with the rows that another sequence has in its first slots."""
        for mine, theirs in zip(self.keys + self.values, other.keys + other.values, strict=True):
            mine[:, :slots] = theirs[:, :slots]

    def split(self) -> list[KVCache]:
        """The same memory as one cache for each sequence."""
        sides = (zip(*(t.split(1) for t in s), strict=True) for s in (self.keys, self.values))
        return [
            replace(self, keys=[*keys], values=[*values], prefix_state=state)
            for keys, values, state in zip(*sides, self.prefix_state.split(1), strict=True)
        ]

    def keep(self, rows: list[int]) -> None:
        """Drop all sequences but these."""
        self.keys, self.values = ([s[rows] for s in side] for side in (self.keys, self.values))
        self.prefix_state = self.prefix_state[rows]


@torch.no_grad()
def make_cache(model: ArmdLM, *, batch: int, length: int) -> KVCache:
    """An empty cache for sequences of up to `length` tokens: 2 * n_layers * batch * (length + 1) *
    n_kv_heads * d_head numbers, and a state of batch * d_pe * d_model."""
    check_cache(model, batch, length)
    config, like = model.config, model.bos
    shape = (batch, length + 1, config.n_kv_heads, config.d_head)
    # zeros, not garbage: a masked slot still multiplies, and 0 * NaN is NaN
    dtype = getattr(model, "cache_dtype", None) or like.dtype
    size = 2 * len(model.layers) * prod(shape) * dtype.itemsize
    huge = like.device.type == "cpu" and size >= PAGE
    zeros = partial(Arena(size).zeros if huge else like.new_zeros, dtype=dtype)
    keys, values = ([zeros(shape) for _ in model.layers] for _ in range(2))
    # of all positions there are, not of these: a product of fewer rows can have other last bits
    positions = max(length, config.max_length) + 2
    moved = torch.arange(positions + config.right_offset, device=like.device)
    rope = rope_cos_sin(moved[None], config)[0].to(like.dtype)
    code = model.position_codes(positions)
    return KVCache(keys, values, like.new_zeros(batch, code.shape[1], config.d_model), code, rope)


@dataclass(frozen=True)
class CacheWindow:
    """How the rows of a group of sequences use its cache in a range of layers."""

    cache: KVCache
    rows: int
    """Of each sequence."""
    n_kv: int
    """The first of them, which write keys and values."""
    start: int
    """The first slot that they write."""
    limit: Int[Tensor, "b r"] | None = None
    """How many slots each row sees; None: all that are written."""
    keep: Int[Tensor, "b q"] | None = None
    """The rows that leave the last of these layers; None: all."""
    right: RightKeys | None = None
    """Which keys stand to the right of each row, if they are treated apart."""
    adapted: Adapted = None
    """Which rows are out of order, if the model has adapters for those."""

    @property
    def length(self) -> int:
        """Slots written afterwards."""
        return self.start + self.n_kv

    @cached_property
    def mask(self) -> Mask:
        return self._mask(slice(None))

    @cached_property
    def last_mask(self) -> Mask:
        """Of the rows that are kept."""
        if (keep := self.keep) is None:
            return self.mask
        return self._mask((torch.arange(len(keep), device=keep.device)[:, None], keep))

    def _mask(self, rows: slice | tuple[Tensor, Tensor]) -> Mask:
        limit = None if self.limit is None else self.limit[rows]
        if self.right is not None:
            right = self.right._replace(times=self.right.times[rows])
            every = torch.full_like(right.times[..., 0], self.length, dtype=torch.long)
            return LimitMask(every if limit is None else limit, self.length, right)
        return "all" if limit is None else bool_mask(limit, self.length)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keep the keys and values that the rows have in a layer."""
        for side, new in ((self.cache.keys[layer], key), (self.cache.values[layer], value)):
            side[:, self.start : self.length] = new.view(len(side), self.n_kv, *new.shape[1:])

    def attend(
        self, layer: int, query: Float[Tensor, "br h e"], bias: Tensor | None, *, last: bool
    ) -> Float[Tensor, "br h e"]:
        """What the rows see in a layer; in the last one, those that are kept."""
        sides = (self.cache.keys[layer], self.cache.values[layer])
        key, value = (side[:, : self.length].to(query.dtype) for side in sides)
        query = query.view(len(key), -1, *query.shape[1:])
        mask = self.last_mask if last else self.mask
        return attention(query, key, value, mask, bias).flatten(0, 1)
