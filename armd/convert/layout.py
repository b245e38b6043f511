"""Where each weight of a Llama-type model goes in ours, and back.

Both rotate pairs of channels. Theirs pairs channel j of a head with j + half ("half-split"), ours
2j with 2j + 1 ("interleaved"); a permutation of the rows of queries and keys leads from one to the
other, and scores do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..model.configuration_armd import ArmdConfig
    from ..model.shapes import Tensor


@dataclass(frozen=True)
class Piece:
    """One source tensor that makes up rows of one of ours."""

    name: str
    rows: int
    width: int | None
    """None for a vector."""
    heads: int = 0
    """Above 0: so many heads whose rows are rotated."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,) if self.width is None else (self.rows, self.width)


def layout(config: ArmdConfig) -> dict[str, list[Piece]]:
    """Our tensor -> the source's tensors, by transformers' names, that it is stacked from."""
    c, d = config, config.d_model
    queries, keys = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    found = {
        "embedding.weight": [Piece("model.embed_tokens.weight", c.vocab_size, d)],
        "norm.weight": [Piece("model.norm.weight", d, None)],
    }
    if not c.tie_word_embeddings:
        found["head.weight"] = [Piece("lm_head.weight", c.vocab_size, d)]
    for number in range(c.n_layers):
        ours, theirs = f"layers.{number}.", f"model.layers.{number}."
        for kind, width in (("weight", d), ("bias", None))[: 2 if c.qkv_bias else 1]:
            attention = theirs + "self_attn."
            found[f"{ours}query.{kind}"] = [
                Piece(f"{attention}q_proj.{kind}", queries, width, c.n_heads)
            ]
            found[f"{ours}key_value.{kind}"] = [
                Piece(f"{attention}k_proj.{kind}", keys, width, c.n_kv_heads),
                Piece(f"{attention}v_proj.{kind}", keys, width),
            ]
        found[ours + "out.weight"] = [Piece(theirs + "self_attn.o_proj.weight", d, queries)]
        found[ours + "gate_up.weight"] = [
            Piece(theirs + "mlp.gate_proj.weight", c.d_ff, d),
            Piece(theirs + "mlp.up_proj.weight", c.d_ff, d),
        ]
        found[ours + "down.weight"] = [Piece(theirs + "mlp.down_proj.weight", d, c.d_ff)]
        found[ours + "attention_norm.weight"] = [Piece(theirs + "input_layernorm.weight", d, None)]
        found[ours + "mlp_norm.weight"] = [
            Piece(theirs + "post_attention_layernorm.weight", d, None)
        ]
    return found


def interleaved(rows: Tensor, heads: int) -> Tensor:
    """Half-split rows as interleaved pairs."""
    flat = rows.reshape(heads, 2, rows.shape[0] // (2 * heads), -1)
    return flat.transpose(1, 2).reshape(rows.shape)


def half_split(rows: Tensor, heads: int) -> Tensor:
    """Interleaved pairs as half-split rows."""
    flat = rows.reshape(heads, rows.shape[0] // (2 * heads), 2, -1)
    return flat.transpose(1, 2).reshape(rows.shape)


def apart(ours: Tensor, pieces: list[Piece]) -> dict[str, Tensor]:
    """The source's tensors, half-split, out of one of ours."""
    found, start = {}, 0
    for piece in pieces:
        rows = ours[start : start + piece.rows]
        found[piece.name] = half_split(rows, piece.heads) if piece.heads else rows
        start += piece.rows
    return found


def new_weights(config: ArmdConfig, embedding: Tensor, bos: int) -> dict[str, Tensor]:
    """What the source has not: BOS as the embedding of its token, the start of a query whose left
    neighbor is unknown, and the bias on keys to the right. None of the last two is used left to
    right."""
    from ..model.prefix import PositionCode
    from .family import RIGHT_BIAS

    d, kind = config.d_model, embedding.dtype
    found = {
        "bos": embedding[bos].clone(),
        "unknown": embedding.float().mean(0).to(kind),
        "gate": torch.zeros(1, dtype=kind),
        "query_norm.weight": torch.ones(d, dtype=kind),
    }
    code = PositionCode(d, config.d_pe)
    generator = torch.Generator().manual_seed(0)
    for name, weight in code.named_parameters():
        draw = torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5
        found[f"position_code.{name}"] = draw.to(kind)
    for number in range(config.n_layers):
        found[f"layers.{number}.right_bias"] = torch.full((config.n_heads,), RIGHT_BIAS).to(kind)
    return found


def is_new(name: str) -> bool:
    """Whether this is one of the weights that no source has; BOS is a copy of one it has."""
    started = ("bos", "unknown", "gate", "query_norm.", "position_code.")
    return name.startswith(started) or name.endswith((".right_bias", ".lora_a", ".lora_b"))
