"""Timing our own decoding at any depth of a text, without writing all that comes before it."""

from dataclasses import replace

import torch

from ..generation.api import generate
from ..generation.kv_cache import Cache, Mark, empty_mark, make_cache
from ..generation.native_state import Script, script_of, step_of
from ..generation.plan import from_prompts
from ..generation.sampling import Sampling
from ..generation.state import Filling
from ..model.modeling_armd import ArmdLM
from .decode import Side
from .timing import timed

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of the text at which calls are timed."""


def our_side(model: ArmdLM, cache: Cache, streams: int, *, passes: int, int8: bool) -> Side:
    """`streams` streams that write texts as long as the cache; what stands in the cache does not
    matter for the time. `passes` calls at each depth, or all of them for 0."""
    batch, length = len(cache.keys[0]), cache.spare - 1
    calls = streams + -(-length // streams) - 1
    prompt = torch.zeros(batch, 0, dtype=torch.long)
    each = max(1, min(passes if batch * streams <= 16 else passes // 4, (calls - streams) // 5))

    def whole() -> float:
        options = {"length": length, "prompt": prompt, "streams": streams}
        return timed(lambda: generate(model, **options), model.device)

    @torch.no_grad()
    def parts() -> float:
        filling, seconds = _start(model, prompt, streams, cache), 0.0
        script = script_of(filling)
        for share in DEPTHS:
            go_to(filling, script, streams + round(share * (calls - streams - each)))
            seconds += timed(lambda: _write(filling, script, each), model.device)
        return seconds

    @torch.no_grad()
    def peak() -> None:
        own = make_cache(model, batch=batch, length=length)
        filling = _start(model, prompt, streams, own)
        script = script_of(filling)
        go_to(filling, script, calls - 1)
        _write(filling, script, 1)

    return Side(
        run=parts if passes else whole,
        calls=calls,
        scale=calls / (each * len(DEPTHS)) if passes else 1.0,
        bytes_a_call=_weights(model, int8=int8) + _cache(model, batch, length),
        measured=f"{each * len(DEPTHS)} calls" if passes else "whole",
        peak=peak,
    )


def go_to(filling: Filling, script: Script | None, step: int) -> None:
    """Put a filling where it would be before call `step`, with nothing real in its cache."""
    ends = filling.canvas.ends
    filling.go_to(step)
    state = empty_mark(filling.model, len(ends)).state
    filling.cache.rewind(Mark(int(ends[0, step - 1]) + 1, int(ends[0, step]), state))
    if script is not None:
        script.follow()


def _start(model: ArmdLM, prompt: torch.Tensor, streams: int, cache: Cache) -> Filling:
    canvas = from_prompts(prompt, length=cache.spare - 1, streams=streams)
    return Filling(model, canvas, sampling=Sampling(), cache=replace(cache))


def _write(filling: Filling, script: Script | None, steps: int) -> None:
    for _ in range(steps):
        step_of(filling, script)


def _weights(model: ArmdLM, *, int8: bool) -> float:
    """Bytes of the weights that a call must read."""
    config = model.config
    layer = 4 * config.d_model**2 + 3 * config.d_model * config.d_ff
    numbers = config.vocab_size * config.d_model + config.n_layers * layer
    return numbers * (1 if int8 else 4)


def _cache(model: ArmdLM, batch: int, length: int) -> float:
    """Bytes of the cache that a call must read, on average over the text."""
    config = model.config
    return 2 * config.n_layers * batch * (length / 2) * config.d_model * 4
