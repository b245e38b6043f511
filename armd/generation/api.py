"""Generation: `generate` and `stream`, which draw block after block, in any order."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from functools import partial
from typing import Any

import torch

from ..errors import ArmdError
from ..model.modeling_armd import ArmdLM
from ..model.order import Order
from ..model.sampling import Sampling
from ..model.shapes import Bool, Int, Tensor
from ..runtime.seeds import generators_per_row
from ..runtime.token_rows import end_token
from .decoder import Decoder
from .kv_cache import KVCache, make_cache
from .outputs import StepOutput
from .plan import DecodePlan, from_blanks, from_prompts
from .sequence import Sequence

Prompts = Tensor | Rows[Rows[int]] | None
Generators = torch.Generator | Rows[torch.Generator] | None


def stream(
    model: ArmdLM,
    *,
    length: int | None = None,
    prompt: Prompts = None,
    tokens: Int[Tensor, "b n"] | None = None,
    known: Bool[Tensor, "*b n"] | None = None,
    streams: int = 1,
    order: Order | None = None,
    generator: Generators = None,
    eos: int | None = None,
    **sampling: Any,
) -> Iterator[StepOutput]:
    """Draw block after block and yield each as it is drawn. Either `length` (and prompts), or
    `tokens` and `known`. `streams` strided runs, or any `order`. With `eos`, a row ends when an EOS
    is drawn and everything before it is there. `sampling` are the fields of Sampling."""
    if (tokens is None) != (known is None) or (tokens is None) == (length is None):
        raise ArmdError("say what to fill: length (and a prompt), or tokens and known")
    if tokens is not None and known is not None:
        if prompt is not None:
            raise ArmdError("tokens hold what is given; leave out the prompt")
        plans = from_blanks(tokens, known, streams=streams, order=order)
    else:
        plans = from_prompts(prompt, length=length or 0, streams=streams, order=order)
    sequences = make_sequences(model, plans, Sampling(**sampling), generator=generator, eos=eos)
    for index in decode(model, sequences):
        yield _batched(sequences, index, model.device)


def generate(
    model: ArmdLM, *, length: int, prompt: Prompts = None, **options: Any
) -> Int[Tensor, "b n"]:
    """Continue prompts to `length` tokens; (batch, length) ids, prompts included. Options as for
    `stream`: streams, order, temperature, top_p, generator, eos ..."""
    return complete(model, partial(from_prompts, prompt, length=length), **options)


def complete(
    model: ArmdLM,
    plan: Callable[..., list[DecodePlan]],
    *,
    streams: int = 1,
    order: Order | None = None,
    generator: Generators = None,
    eos: int | None = None,
    **sampling: Any,
) -> Int[Tensor, "b n"]:
    """All tokens of the sequences that a plan makes of `streams` or an `order`."""
    plans, chosen = plan(streams=streams, order=order), Sampling(**sampling)
    sequences = make_sequences(model, plans, chosen, generator=generator, eos=eos)
    for _ in decode(model, sequences):
        pass
    return torch.tensor([sequence.text() for sequence in sequences], device=model.device)


def make_sequences(
    model: ArmdLM,
    plans: Rows[DecodePlan],
    sampling: Sampling,
    *,
    generator: Generators = None,
    eos: int | None = None,
    cache: KVCache | None = None,
) -> list[Sequence]:
    """A sequence for each plan. Those that take equal steps share a cache, so that torch has them
    in one batch; the C backend takes each by itself. `cache` is one for all of them."""
    generators, native = generators_per_row(generator, len(plans)), Decoder.is_native(model)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, plan in enumerate(plans):
        groups[() if native else tuple(plan.step_ends)].append(index)
    made: dict[int, Sequence] = {}
    for group in groups.values():
        length = max(len(plans[index].tokens) for index in group)
        shared = cache or make_cache(model, batch=len(group), length=length)
        caches = shared.split() if native else [shared] * len(group)
        for row, (index, own) in enumerate(zip(group, caches, strict=True)):
            options = {"sampling": sampling, "generator": generators[index], "eos": end_token(eos)}
            made[index] = Sequence(model, plans[index], own, row=0 if native else row, **options)
    return [made[index] for index in range(len(plans))]


def decode(model: ArmdLM, sequences: list[Sequence]) -> Iterator[int]:
    """The loop itself: take all sequences a step further until they are done. Yields the number of
    each step after it was taken."""
    decoder, index = Decoder(model), 0
    while active := [sequence for sequence in sequences if not sequence.done]:
        for result in decoder.steps(active)[0]:
            if isinstance(result, Exception):
                raise result
        yield index
        index += 1


def _batched(sequences: list[Sequence], index: int, device: torch.device) -> StepOutput:
    """What step `index` drew, as tensors."""
    ends = [
        s.plan.step_ends[index : index + 2] if s.step == index + 1 else [0, 0] for s in sequences
    ]
    places = [s.plan.position[start:end] for s, (start, end) in zip(sequences, ends, strict=True)]
    width, padding = max(map(len, places)), (len(sequences[0].tokens), 0, 0.0, False)
    rows = []
    for s, own in zip(sequences, places, strict=True):
        drawn = [(at, s.tokens[at], s.logp[at], not s.plan.known[at]) for at in own]
        rows.append(zip(*drawn, *[padding] * (width - len(own)), strict=True))
    position, token, logp, is_drawn = zip(*rows, strict=True)
    logps = torch.tensor(logp, dtype=torch.float64)
    logps = logps if device.type == "mps" else logps.to(device)  # MPS has no float64
    at, tokens, new = (torch.tensor(side, device=device) for side in (position, token, is_drawn))
    return StepOutput(index, at, tokens, logps, new)
