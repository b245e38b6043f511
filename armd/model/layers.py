"""The parts of a layer: its weights, its masks, its positions, and the one attention call."""

from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .configuration_armd import ArmdConfig
from .cpu_ops import Dropout, RmsNorm, apply_rope, swiglu
from .shapes import Bool, Float, Int, Tensor

Mask = Bool[Tensor, "#b 1 n m"] | BlockMask | Literal["all"] | None


def mask_from_limit(limit: Int[Tensor, "b n"], keys: int) -> Mask:
    """Row k sees keys 0..limit_k - 1. In generation order every mask of the paper is of this form,
    because what a row may see (blocks before its own, or up to its own) is always a prefix."""
    if limit.device.type != "cuda":
        return bool_mask(limit, keys)

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < limit[b, q]

    rows, n = limit.shape
    return create_block_mask(visible, rows, None, n, keys, device=limit.device)


def bool_mask(limit: Int[Tensor, "b n"], keys: int) -> Bool[Tensor, "b 1 n m"]:
    """That mask written out."""
    return (torch.arange(keys, device=limit.device) < limit[..., None])[:, None]


_flex = torch.compile(flex_attention, dynamic=True)


def attention(
    query: Float[Tensor, "b n h e"],
    key: Float[Tensor, "b m h e"],
    value: Float[Tensor, "b m h e"],
    mask: Mask = None,
) -> Float[Tensor, "b n h e"]:
    """The one attention call. mask None: row k sees keys 0..k; "all": it sees every key."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if isinstance(mask, BlockMask):
        out = _flex(q, k, v, block_mask=mask)
    elif mask is None or isinstance(mask, str):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=mask is None)
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.transpose(1, 2)


def rope_cos_sin(position: Int[Tensor, "b n"], config: ArmdConfig) -> Float[Tensor, "b n half 2"]:
    """Cosine and sine of the angle by which rotary turns each pair of channels at a position."""
    half = config.d_head // 2
    exponent = torch.arange(half, device=position.device, dtype=torch.float64) / half
    angle = position[..., None].double() * config.rope_base**-exponent
    return torch.stack([angle.cos(), angle.sin()], -1)


class Layer(nn.Module):
    """The weights of a transformer layer: pre-norm attention and SwiGLU, no biases. What flows
    through them (one stream or two) is the subclasses' affair, in modeling_armd.py."""

    def __init__(self, config: ArmdConfig) -> None:
        super().__init__()
        d, self.heads = config.d_model, config.n_heads
        self.attention_norm = RmsNorm(d, eps=config.norm_eps)
        self.query = nn.Linear(d, d, bias=False)
        self.key_value = nn.Linear(d, 2 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.mlp_norm = RmsNorm(d, eps=config.norm_eps)
        self.gate_up = nn.Linear(d, 2 * config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, d, bias=False)
        self.dropout = Dropout(config.dropout)

    def queries(
        self, rows: Float[Tensor, "b n d"], rope: Float[Tensor, "b2 n half 2"]
    ) -> Float[Tensor, "b n h e"]:
        return apply_rope(self.query(rows).unflatten(-1, (self.heads, -1)), rope)

    def keys_values(
        self, rows: Float[Tensor, "b n d"], rope: Float[Tensor, "b2 n half 2"]
    ) -> tuple[Float[Tensor, "b n h e"], Float[Tensor, "b n h e"]]:
        key, value = self.key_value(rows).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        return apply_rope(key, rope), value

    def project_and_mlp(
        self, rows: Float[Tensor, "b n d"], seen: Float[Tensor, "b n h e"]
    ) -> Float[Tensor, "b n d"]:
        """Add what attention saw, then the feed-forward."""
        rows = rows + self.dropout(self.out(seen.flatten(-2)))
        return rows + self.dropout(self.down(swiglu(self.gate_up(self.mlp_norm(rows)))))
