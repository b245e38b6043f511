"""Generation: `generate`, `infill` and `stream`, which draw block after block, one forward pass
each, in any order."""

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from typing import Any

import torch

from ..errors import ArmdError
from ..model.modeling_armd import ArmdLM
from ..model.order import Order
from ..model.shapes import Bool, Int, Tensor
from .decoder import Decoder
from .kv_cache import KVCache, make_cache
from .outputs import StepOutput
from .plan import DecodePlan, from_blanks, from_prompts
from .sampling import Sampling
from .sequence import Generators, Sequence, generators_per_row


def stream(
    model: ArmdLM,
    *,
    length: int | None = None,
    prompt: Tensor | Rows[Rows[int]] | None = None,
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
    options = {"generator": generator, "eos": eos}
    sequences = make_sequences(model, plans, sampling=Sampling(**sampling), **options)
    for index in decode(model, sequences):
        yield _batched(sequences, index, model.device)


def generate(model: ArmdLM, *, length: int, **options: Any) -> Int[Tensor, "b n"]:
    """Continue prompts to `length` tokens; (batch, length) ids, prompts included. Options as for
    `stream`: prompt, streams, order, temperature, top_p, generator, eos ..."""
    chosen = {name: options.pop(name) for name in ("streams", "order") if name in options}
    plans = from_prompts(options.pop("prompt", None), length=length, **chosen)
    return _complete(model, plans, **options)


def infill(
    model: ArmdLM, tokens: Int[Tensor, "b n"], known: Bool[Tensor, "*b n"], **options: Any
) -> Int[Tensor, "b n"]:
    """Fill the blanks, where `known` is False; everything known stays as it is."""
    chosen = {name: options.pop(name) for name in ("streams", "order") if name in options}
    return _complete(model, from_blanks(tokens, known, **chosen), **options)


def _complete(
    model: ArmdLM,
    plans: list[DecodePlan],
    *,
    generator: Generators = None,
    eos: int | None = None,
    **sampling: Any,
) -> Int[Tensor, "b n"]:
    options = {"sampling": Sampling(**sampling), "generator": generator, "eos": eos}
    sequences = make_sequences(model, plans, **options)
    for _ in decode(model, sequences):
        pass
    return torch.tensor([sequence.text() for sequence in sequences], device=model.device)


def make_sequences(
    model: ArmdLM,
    plans: Rows[DecodePlan],
    *,
    sampling: Sampling,
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
    rows: dict[int, tuple[KVCache, int]] = {}
    for group in groups.values():
        length = len(plans[group[0]].tokens)
        shared = cache or make_cache(model, batch=len(group), length=length)
        split = [(own, 0) for own in shared.split()] if native else None
        rows |= zip(group, split or [(shared, row) for row in range(len(group))], strict=True)
    return [
        Sequence(
            *(model, plan, rows[index][0]),
            row=rows[index][1],
            sampling=sampling,
            generator=generators[index],
            eos=eos,
        )
        for index, plan in enumerate(plans)
    ]


@torch.no_grad()
def decode(model: ArmdLM, sequences: list[Sequence]) -> Iterator[int]:
    """The loop itself: take all sequences a step further until they are done. Yields the number of
    each step after it was taken."""
    training, index = model.training, 0
    model.eval()
    try:
        decoder = Decoder(model)
        while active := [sequence for sequence in sequences if not sequence.done]:
            for result in decoder.step(active):
                if isinstance(result, Exception):
                    raise result
            yield index
            index += 1
    finally:
        model.train(training)


def _batched(sequences: list[Sequence], index: int, device: torch.device) -> StepOutput:
    """What step `index` drew, as tensors."""
    n = len(sequences[0].tokens)
    places = [s.last_positions if s.step == index + 1 else [] for s in sequences]
    width = max(map(len, places))
    position, token, logp, drawn = [], [], [], []
    for sequence, own in zip(sequences, places, strict=True):
        padding = width - len(own)
        position.append([*own, *[n] * padding])
        token.append([*(sequence.tokens[at] for at in own), *[0] * padding])
        logp.append([*(sequence.logp[at] for at in own), *[0.0] * padding])
        drawn.append([*(not sequence.plan.known[at] for at in own), *[False] * padding])
    at, tokens = (torch.tensor(side, device=device) for side in (position, token))
    logps = torch.tensor(logp, dtype=torch.float64)
    logps = logps if device.type == "mps" else logps.to(device)  # MPS has no float64
    return StepOutput(index, at, tokens, logps, torch.tensor(drawn, device=device))
