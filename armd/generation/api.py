"""Generation: the loop that draws block after block, one fused pass each, in any order."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..errors import ArmdError
from ..model.modeling_armd import ArmdLM
from ..model.order import Order
from ..model.shapes import Bool, Int, Tensor
from .native_state import script_of, step_of
from .plan import Canvas, from_blanks, from_prompts
from .sampling import Sampling
from .state import Filling, Generators, Step


def stream(
    model: ArmdLM,
    *,
    length: int | None = None,
    prompt: Tensor | Sequence[Sequence[int]] | None = None,
    tokens: Int[Tensor, "b n"] | None = None,
    known: Bool[Tensor, "*b n"] | None = None,
    streams: int = 1,
    order: Order | None = None,
    generator: Generators = None,
    eos: int | None = None,
    **sampling: Any,
) -> Iterator[Step]:
    """Draw block after block and yield each as it is drawn. Either `length` (and prompts), or
    `tokens` and `known`. `streams` strided runs, or any `order`. With `eos`, a row ends when an EOS
    is drawn and everything before it is there. `sampling` are the fields of Sampling."""
    if (tokens is None) != (known is None) or (tokens is None) == (length is None):
        raise ArmdError("say what to fill: length (and a prompt), or tokens and known")
    if tokens is not None and known is not None:
        if prompt is not None:
            raise ArmdError("tokens hold what is given; leave out the prompt")
        canvas = from_blanks(tokens, known, streams=streams, order=order)
    else:
        canvas = from_prompts(prompt, length=length or 0, streams=streams, order=order)
    yield from fill(model, canvas, sampling=Sampling(**sampling), generator=generator, eos=eos)


def generate(model: ArmdLM, *, length: int, **options: Any) -> Int[Tensor, "b n"]:
    """Continue prompts to `length` tokens; (batch, length) ids, prompts included. Options as for
    `stream`: prompt, streams, order, temperature, top_p, generator, eos ..."""
    prompt = options.pop("prompt", None)
    tracks = {name: options.pop(name) for name in ("streams", "order") if name in options}
    return _complete(model, from_prompts(prompt, length=length, **tracks), options)


def infill(
    model: ArmdLM, tokens: Int[Tensor, "b n"], known: Bool[Tensor, "*b n"], **options: Any
) -> Int[Tensor, "b n"]:
    """Fill the blanks, where `known` is False; everything known stays as it is."""
    tracks = {name: options.pop(name) for name in ("streams", "order") if name in options}
    return _complete(model, from_blanks(tokens, known, **tracks), options)


def _complete(model: ArmdLM, canvas: Canvas, options: dict[str, Any]) -> Tensor:
    loop = {name: options.pop(name) for name in ("generator", "eos") if name in options}
    text, known = canvas.tokens.to(model.device), canvas.known.to(model.device)
    text = torch.nn.functional.pad(text, (0, 1))
    for step in fill(model, canvas, sampling=Sampling(**options), **loop):
        text.scatter_(1, step.position, step.token)
    text, eos = text[:, :-1], loop.get("eos")
    if eos is None:
        return text
    # what other streams wrote behind the first EOS is no part of the text
    over = ((text == eos) & ~known).cumsum(1) > 0
    return text.masked_fill(over & ~known, eos)


@torch.no_grad()
def fill(
    model: ArmdLM,
    canvas: Canvas,
    *,
    sampling: Sampling,
    generator: Generators = None,
    eos: int | None = None,
) -> Iterator[Step]:
    """The loop itself."""
    filling = Filling(model, canvas, sampling=sampling, generator=generator, eos=eos)
    training = model.training
    model.eval()
    try:
        script = script_of(filling)
        while not filling.done:
            yield step_of(filling, script)
    finally:
        model.train(training)
