"""What decoding is measured against: no cache, GPT-2's cache, and masked diffusion."""

from typing import Any, cast

import torch
from torch import nn

from ..model.attention_inputs import AttentionInputs
from ..model.configuration_armd import ArmdConfig
from ..model.layers import rope_cos_sin
from ..model.modeling_armd import ArmdLM
from ..model.order import left_to_right
from ..model.sampling import Sampling
from ..native.sample import draw
from .armd_decode import DEPTHS
from .decode import Side
from .timing import timed


def cacheless_side(model: ArmdLM, batch: int, length: int) -> Side:
    """One token at a time, the whole text so far anew for each: timed at five lengths evenly
    spread, because every one of the passes would take an hour, and for one text, because with so
    many rows several take as many times as long."""
    lengths = [max(1, round(length * share)) for share in DEPTHS]

    @torch.no_grad()
    def run() -> None:
        for n in lengths:
            tokens = torch.zeros(1, n, dtype=torch.long, device=model.device)
            rows = model.hidden(tokens, left_to_right(n))[:, -1:]
            draw(model.logits(rows), torch.rand(1, 1, dtype=torch.float64), Sampling())

    return Side(
        run=lambda: timed(run, model.device),
        calls=length,
        scale=batch * length / len(lengths),
        bytes_a_call=None,
        measured=f"{len(lengths)} calls, 1 text",
        peak=run,
    )


def gpt2_side(config: ArmdConfig, batch: int, length: int, device: Any, *, passes: int) -> Side:
    """transformers' own generate, sampling from the whole vocabulary as we do: `passes` tokens at
    each depth, after a cache that is there already, or all of them for 0."""
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

    same = {"n_layer": config.n_layers, "n_embd": config.d_model, "n_head": config.n_heads}
    same |= {"vocab_size": config.vocab_size, "n_positions": length + 1}
    theirs: Any = GPT2Config(**cast(Any, same))
    theirs.bos_token_id, theirs.eos_token_id = 0, None
    model: Any = GPT2LMHeadModel(theirs).to(device).eval()
    each = min(passes, max(1, length // 10)) or length
    starts = [round(length * share) for share in DEPTHS] if passes else [0]

    @torch.no_grad()
    def write(start: int) -> float:
        shape = (batch, config.n_heads, start, config.d_head)
        cache = DynamicCache()
        for index in range(config.n_layers if start else 0):
            key, value = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
            cache.update(key, value, index)
        tokens = torch.zeros(batch, start + 1, dtype=torch.long, device=device)
        options = {"max_new_tokens": each, "min_new_tokens": each, "do_sample": True, "top_k": 0}
        options |= {"pad_token_id": 0, "attention_mask": torch.ones_like(tokens)}
        return timed(lambda: model.generate(tokens, past_key_values=cache, **options), device)

    read = sum(p.numel() for p in model.parameters()) * 4
    return Side(
        run=lambda: sum(map(write, starts)),
        calls=length,
        scale=length / (each * len(starts)),
        bytes_a_call=read + 2 * config.n_layers * batch * (length / 2) * config.d_model * 4,
        measured=f"{each * len(starts)} calls" if passes else "whole",
        peak=lambda: write(starts[-1]),
    )


def diffusion_sides(config: ArmdConfig, batch: int, length: int, device: Any) -> dict[str, Side]:
    """A masked-diffusion sampler with the same trunk: every pass sees and scores the whole text
    in both directions and nothing can be cached. Its passes all cost the same, so one is timed, of
    one text: with so many rows several take as many times as long."""
    trunk = ArmdLM(ArmdConfig.from_dict({**config.to_dict(), "query": "shift"})).to(device).eval()
    position = torch.arange(length, device=device)[None]
    rope = rope_cos_sin(position, config).to(trunk.dtype)
    inputs = AttentionInputs(rope, rope, limit=None, query="all")
    tokens = torch.zeros(1, length, dtype=torch.long, device=device)

    @torch.no_grad()
    def run() -> None:
        rows = trunk.embedding(tokens)
        for layer in trunk.layers:
            rows = layer(rows, inputs)
        for part in nn.functional.linear(trunk.norm(rows), trunk.embedding.weight).split(64, 1):
            draw(part, torch.rand(1, part.shape[1], dtype=torch.float64), Sampling())

    sides = {}
    for share in (1, 2, 4):
        calls = length // share
        sides[f"masked diffusion T={calls}"] = Side(
            run=lambda: timed(run, device),
            calls=calls,
            scale=float(batch * calls),
            bytes_a_call=None,
            measured="1 call, 1 text",
            peak=run,
        )
    return sides
