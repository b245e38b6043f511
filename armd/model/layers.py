"""The parts of a layer: its weights, its masks, its positions, and the one attention call."""

from functools import cache
from math import pi
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .adapted_linear import AdaptedLinear
from .configuration_armd import ArmdConfig
from .cpu_ops import Dropout, RmsNorm, apply_rope, swiglu
from .limited_attention import LimitMask, RightKeys, attend, moved_keys
from .shapes import Bool, Float, Int, Tensor

Written = Bool[Tensor, "#b 1 n m"] | Float[Tensor, "#b #h n m"]
"""A mask written out: what each row sees, or what is added to its scores."""
Mask = Written | BlockMask | LimitMask | Literal["all"] | None
KeyValue = tuple[Float[Tensor, "t m kv e"], Float[Tensor, "t m kv e"]]
Adapted = Float[Tensor, "#b n 1"] | None
"""Which rows take the adapters of linear layers: as out_of_order gives it."""


def mask_from_limit(limit: Int[Tensor, "b n"], keys: int, right: RightKeys | None = None) -> Mask:
    """Row k sees keys 0..limit_k - 1. In generation order every mask of the paper is of this form,
    because what a row may see (blocks before its own, or up to its own) is always a prefix.
    `right`: which keys stand to the right of a row, if they are treated apart."""
    if limit.device.type != "cuda" or right is not None:
        return LimitMask(limit, keys, right)

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < limit[b, q]

    rows, n = limit.shape
    return create_block_mask(visible, rows, None, n, keys, device=limit.device)


def bool_mask(limit: Int[Tensor, "b n"], keys: int) -> Bool[Tensor, "b 1 n m"]:
    """That mask written out."""
    return (torch.arange(keys, device=limit.device) < limit[..., None])[:, None]


@cache
def _compiled_flex() -> Any:
    """Made where it is first used: torch's compiler takes a second to import."""
    return torch.compile(flex_attention, dynamic=True)


def attention(
    query: Float[Tensor, "b n h e"],
    key: Float[Tensor, "b m kv e"],
    value: Float[Tensor, "b m kv e"],
    mask: Mask = None,
    right_bias: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "b n h e"]:
    """The one attention call. mask None: row k sees keys 0..k; "all": it sees every key. Heads of
    keys may be fewer than those of queries, and are then read by several each."""
    if isinstance(mask, LimitMask):
        return _limited(query, key, value, mask, None if mask.right is None else right_bias)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    grouped: Any = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    if isinstance(mask, BlockMask):
        flex = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
        out = flex(q, k, v, block_mask=mask, **grouped)
    elif mask is None or isinstance(mask, str):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=mask is None, **grouped)
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **grouped)
    return out.transpose(1, 2)


def _limited(
    query: Tensor, key: Tensor, value: Tensor, mask: LimitMask, bias: Tensor | None
) -> Float[Tensor, "b n h e"]:
    if query.device.type == "cpu" and not torch.compiler.is_compiling():
        return attend(query, key, value, mask, bias)
    if mask.right is None:
        return attention(query, key, value, mask.dense())
    key, value, added = moved_keys(key, value, mask, bias)
    return attention(query, key, value, added)


def right_keys(
    rows_at: Int[Tensor, "b n"], keys_at: Int[Tensor, "b m"], config: ArmdConfig
) -> RightKeys | None:
    """Which keys stand to the right of each row, by their RoPE positions, if the model treats them
    apart: with `right_offset` they are read as if they stood before it."""
    if not (config.right_bias or config.right_offset):
        return None
    keys, rows = keys_at.int()[:, None], rows_at.int()[..., None]  # there are many pairs
    if not config.right_offset:
        return RightKeys((keys > rows).to(torch.int16), None)
    distance = keys - rows
    most = -(-int(distance.max()) // config.right_offset)
    moves = torch.arange(1, max(0, most) + 1, device=distance.device) * config.right_offset
    # a key that is further away than k moves is moved once more; a division would take long
    times = torch.zeros_like(distance, dtype=torch.int32)
    for before in range(most):
        times += distance > before * config.right_offset
    return RightKeys(times, rope_cos_sin(moves[None], config)[0])


def rope_cos_sin(position: Int[Tensor, "b n"], config: ArmdConfig) -> Float[Tensor, "b n half 2"]:
    """Cosine and sine of the angle by which RoPE rotates each pair of channels at a position."""
    half = config.d_head // 2
    exponent = torch.arange(half, device=position.device, dtype=torch.float64) / half
    frequency = _scaled(config.rope_base**-exponent, config.rope_llama3)
    angle = position[..., None].double() * frequency
    return torch.stack([angle.cos(), angle.sin()], -1)


def _scaled(
    frequency: Float[Tensor, "half"], llama3: dict[str, float] | None
) -> Float[Tensor, "half"]:
    """Llama 3's RoPE for long texts: slow pairs are slowed by a factor, fast ones stay as they are,
    those between are blended."""
    if llama3 is None:
        return frequency
    low, high = llama3["low_freq_factor"], llama3["high_freq_factor"]
    turns = llama3["original_max_position_embeddings"] * frequency / (2 * pi)
    stay = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (stay + (1 - stay) / llama3["factor"])


class Layer(nn.Module):
    """The weights of a transformer layer: pre-norm attention and SwiGLU. What flows through them
    (one stream or two) is the subclasses' affair, in streams.py."""

    def __init__(self, config: ArmdConfig) -> None:
        super().__init__()
        d, self.heads, self.kv_heads = config.d_model, config.n_heads, config.n_kv_heads
        queries, pairs = self.heads * config.d_head, 2 * self.kv_heads * config.d_head
        bias, rank = config.qkv_bias, config.adapter_rank
        self.attention_norm = RmsNorm(d, eps=config.norm_eps)
        self.query = AdaptedLinear(d, queries, bias=bias, rank=rank)
        self.key_value = AdaptedLinear(d, pairs, bias=bias, rank=rank)
        self.out = AdaptedLinear(queries, d, bias=False, rank=rank)
        self.mlp_norm = RmsNorm(d, eps=config.norm_eps)
        self.gate_up = AdaptedLinear(d, 2 * config.d_ff, bias=False, rank=rank)
        self.down = AdaptedLinear(config.d_ff, d, bias=False, rank=rank)
        self.dropout = Dropout(config.dropout)
        self.right_bias = nn.Parameter(torch.zeros(self.heads)) if config.right_bias else None

    def queries(
        self,
        rows: Float[Tensor, "b n d"],
        rope: Float[Tensor, "b2 n half 2"],
        adapted: Adapted = None,
    ) -> Float[Tensor, "b n h e"]:
        return apply_rope(self.query(rows, adapted).unflatten(-1, (self.heads, -1)), rope)

    def keys_values(
        self,
        rows: Float[Tensor, "b n d"],
        rope: Float[Tensor, "b2 n half 2"],
        adapted: Adapted = None,
    ) -> KeyValue:
        both = self.key_value(rows, adapted).unflatten(-1, (2, self.kv_heads, -1))
        key, value = both.unbind(-3)
        return apply_rope(key, rope), value

    def project_and_mlp(
        self,
        rows: Float[Tensor, "b n d"],
        seen: Float[Tensor, "b n h e"],
        adapted: Adapted = None,
    ) -> Float[Tensor, "b n d"]:
        """Add what attention saw, then the feed-forward."""
        rows = rows + self.dropout(self.out(seen.flatten(-2), adapted))
        hidden = swiglu(self.gate_up(self.mlp_norm(rows), adapted))
        return rows + self.dropout(self.down(hidden, adapted))
