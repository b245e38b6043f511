"""Timing our own decoding at any depth of a sequence, without generating what comes before it."""

from collections.abc import Callable

import torch

from ..generation.api import generate, make_sequences
from ..generation.decoder import Decoder
from ..generation.kv_cache import KVCache, make_cache
from ..generation.plan import from_prompts
from ..generation.sequence import Sequence
from ..model.modeling_armd import ArmdLM
from ..model.sampling import Sampling
from .decode import Side
from .timing import timed

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of the text at which calls are timed."""
BYTES = {"plain": 4, "fp32": 4, "bf16": 2, "int8": 1, "q8": 34 / 32, "q4": 18 / 32}
"""Of a weight; q8 and q4 have a scale of two bytes for each 32."""
COMPACT = 3.5
"""The same of fp32 in 28 bits (native/compact.h)."""


def our_side(model: ArmdLM, cache: KVCache, streams: int, *, passes: int, weights: str) -> Side:
    """`streams` streams that generate sequences as long as the cache; what stands in the cache does
    not matter for the time. `passes` calls at each depth, or all of them for 0."""
    batch, length = cache.batch, cache.keys[0].shape[1] - 1
    calls = streams + -(-length // streams) - 1
    prompt = torch.zeros(batch, 0, dtype=torch.long)
    each = max(1, min(passes if batch * streams <= 16 else passes // 4, (calls - streams) // 5))
    decoder = Decoder(model)

    def start(cache: KVCache) -> list[Sequence]:
        plans = from_prompts(prompt, length=length, streams=streams)
        return make_sequences(model, plans, Sampling(), cache=cache)

    def go_on(sequences: list[Sequence], steps: int) -> None:
        for _ in range(steps):
            decoder.steps(sequences)

    def whole() -> float:
        options = {"length": length, "prompt": prompt, "streams": streams}
        return timed(lambda: generate(model, **options), model.device)

    @torch.no_grad()
    def parts() -> float:
        sequences, seconds = start(cache), 0.0
        for share in DEPTHS:
            go_to(sequences, streams + round(share * (calls - streams - each)))
            seconds += timed(lambda: go_on(sequences, each), model.device)
        return seconds

    @torch.no_grad()
    def peak() -> None:
        sequences = start(make_cache(model, batch=batch, length=length))
        go_to(sequences, calls - 1)
        go_on(sequences, 1)

    return Side(
        run=parts if passes else whole,
        calls=calls,
        scale=calls / (each * len(DEPTHS)) if passes else 1.0,
        bytes_a_call=_weights(model, weights) + _cache(cache),
        measured=f"{each * len(DEPTHS)} calls" if passes else "whole",
        peak=peak,
    )


def first_step(model: ArmdLM, prompt: int) -> Callable[[], object]:
    """What passes over a prompt of so many tokens and draws one more."""
    decoder, tokens = Decoder(model), torch.zeros(1, prompt, dtype=torch.long)
    cache = make_cache(model, batch=1, length=prompt + 1)

    @torch.no_grad()
    def run() -> None:
        plans = from_prompts(tokens, length=prompt + 1, streams=1)
        cache.clear()
        decoder.steps(make_sequences(model, plans, sampling=Sampling(), cache=cache))

    return run


def go_to(sequences: list[Sequence], step: int) -> None:
    """Put sequences where they would be before step `step`, with nothing real in their caches."""
    for sequence in sequences:
        sequence.step = step
        sequence.cache.clear()


def _weights(model: ArmdLM, weights: str) -> float:
    """Bytes of the weights that a call must read."""
    config = model.config
    layer = 2 * config.d_model * (config.n_heads + config.n_kv_heads) * config.d_head
    layer += 3 * config.d_model * config.d_ff
    numbers = config.vocab_size * config.d_model + config.n_layers * layer
    compacted = getattr(getattr(model, "head", None), "exceptions", None) is not None
    return numbers * (COMPACT if compacted else BYTES[weights])


def _cache(cache: KVCache) -> float:
    """Bytes of the cache that a call must read, on average over the text: half of it."""
    return sum(keys.numel() * keys.element_size() for keys in cache.keys)
