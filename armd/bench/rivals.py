"""What decoding is measured against: no cache, GPT-2's cache, and masked diffusion."""

from typing import Any, cast

import torch
from torch import nn

from ..configuration_armd import ArmdConfig
from ..filling import uniforms
from ..layers import turns
from ..modeling_armd import ArmdLM, Sight
from ..order import left_to_right
from ..sampling import Sampling, draw
from .decode import Side


def cacheless_side(model: ArmdLM, batch: int, length: int) -> Side:
    """One token at a time, the whole text so far anew for each: timed at five lengths evenly
    spread, because every one of the passes would take an hour."""
    lengths = [max(1, round(length * share)) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]

    @torch.no_grad()
    def run() -> None:
        for n in lengths:
            tokens = torch.zeros(batch, n, dtype=torch.long, device=model.device)
            rows = model.hidden(tokens, left_to_right(n))[:, -1:]
            draw(model.logits(rows), uniforms(batch, 1).to(model.device), Sampling())

    return Side(run, length, length / len(lengths), None, f"{len(lengths)} passes")


def gpt2_side(config: ArmdConfig, batch: int, length: int, device: Any) -> Side:
    """transformers' own generate, sampling from the whole vocabulary as we do."""
    from transformers import GPT2Config, GPT2LMHeadModel

    same = {"n_layer": config.n_layers, "n_embd": config.d_model, "n_head": config.n_heads}
    same |= {"vocab_size": config.vocab_size, "n_positions": length + 1}
    theirs: Any = GPT2Config(**cast(Any, same))
    theirs.bos_token_id, theirs.eos_token_id = 0, None
    model: Any = GPT2LMHeadModel(theirs).to(device).eval()
    start = torch.zeros(batch, 1, dtype=torch.long, device=device)
    options = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": True, "top_k": 0}
    options |= {"pad_token_id": 0, "attention_mask": torch.ones_like(start)}
    read = sum(p.numel() for p in model.parameters()) * 4
    cache = 2 * config.n_layers * batch * (length / 2) * config.d_model * 4
    return Side(lambda: model.generate(start, **options), length, 1.0, read + cache, "whole")


def diffusion_sides(config: ArmdConfig, batch: int, length: int, device: Any) -> dict[str, Side]:
    """A masked-diffusion sampler with the same trunk: every pass sees and scores the whole canvas
    in both directions and nothing can be cached. Its passes all cost the same, so one is timed."""
    trunk = ArmdLM(ArmdConfig.from_dict({**config.to_dict(), "query": "shift"})).to(device).eval()
    position = torch.arange(length, device=device)[None]
    turn = turns(position, config).to(trunk.dtype)
    sight = Sight(turn, turn, limit=None, query="all")
    tokens = torch.zeros(batch, length, dtype=torch.long, device=device)

    @torch.no_grad()
    def run() -> None:
        rows = trunk.embedding(tokens)
        for layer in trunk.layers:
            rows = layer(rows, sight)
        for part in nn.functional.linear(trunk.norm(rows), trunk.embedding.weight).split(64, 1):
            draw(part, uniforms(batch, part.shape[1]).to(device), Sampling())

    sides = {}
    for share in (1, 2, 4):
        calls = length // share
        sides[f"masked diffusion T={calls}"] = Side(run, calls, float(calls), None, "1 pass")
    return sides
