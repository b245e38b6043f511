"""Generation: the loop that draws block after block, one fused pass each, in any order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .cache import Cache, advance, make_cache
from .canvas import Canvas, from_blanks, from_prompts
from .errors import ArmdError
from .modeling_armd import ArmdLM
from .order import Order
from .sampling import Sampling, draw
from .shapes import Bool, Float, Int, Tensor

Generators = torch.Generator | Sequence[torch.Generator] | None


@dataclass(frozen=True)
class Step:
    """What one pass of the model drew: up to m tokens a row, in natural positions."""

    index: int
    """0 for the first pass."""
    position: Int[Tensor, "b m"]
    token: Int[Tensor, "b m"]
    logp: Float[Tensor, "b m"]
    """log p under the model, float64."""
    drawn: Bool[Tensor, "b m"]
    """False for padding, for tokens that were given, and for rows that have ended."""


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
    """The loop itself. Position n, one past the end, is where padding goes."""
    _check(model, canvas)
    device, (batch, n) = model.device, canvas.tokens.shape
    cache = make_cache(model, batch=batch, length=n)
    uniform = _pad(uniforms(batch, n, generator).to(device), 0.0)
    position = _pad(canvas.order.position.to(device), n)
    known, text = _pad(canvas.known.to(device), True), _pad(canvas.tokens.to(device), 0)
    seen = None
    if sampling.repetition_penalty != 1:
        seen = _seen(text[:, :n], known[:, :n], model.config.vocab_size)
    written = known.clone()
    place, training = canvas.slots(0).to(device), model.training
    model.eval()
    try:
        for index in range(canvas.steps):
            rows, place = _pass(model, cache, canvas, index, text, position, place)
            at = position.gather(1, place)
            given = known.gather(1, at)
            forced = text.gather(1, at).where(given, -1) if canvas.forced else None
            token, logp = draw(model.logits(rows), uniform.gather(1, place), sampling, seen, forced)
            token = text.gather(1, at).where(given, token)
            text.scatter_(1, at, token)
            if seen is not None:
                seen |= _seen(token, place < n, model.config.vocab_size)
            yield Step(index, at, token, logp, ~given)
            if eos is not None:
                written.scatter_(1, at, True)
                known |= _ended(text, known, written, eos)[:, None]
                if bool(known.all()):
                    return
    finally:
        model.train(training)


def _pass(
    model: ArmdLM,
    cache: Cache,
    canvas: Canvas,
    index: int,
    text: Int[Tensor, "b n1"],
    position: Int[Tensor, "b n1"],
    last: Int[Tensor, "b m"],
) -> tuple[Float[Tensor, "b k d"], Int[Tensor, "b k"]]:
    """Enter what the step before drew (before the first: BOS and all that is given), and the query
    rows of this step. Returns this step's rows and their places in generation order."""
    place = canvas.slots(index + 1).to(text.device)
    drawn_at, wanted_at = position.gather(1, last), position.gather(1, place)
    context, context_position, query_position = (
        text.gather(1, drawn_at),
        drawn_at + 1,
        wanted_at + 1,
    )
    placing = canvas.placing(index + 1, cache.spare)
    if index == 0:
        x = model.context_rows(context)
        query_position = torch.cat([context_position, query_position], 1)
        context_position = torch.nn.functional.pad(context_position, (1, 0))
    else:
        x = model.embedding(context)
    rows = advance(
        model, cache, x, context_position, query_position, placing and placing.to(text.device)
    )
    if model.config.query == "shift":  # the row of the last token itself predicts the next
        newest = canvas.ends[:, 0].to(text.device) if index == 0 else torch.zeros_like(last[:, 0])
        return rows.gather(1, newest[:, None, None].expand(-1, 1, rows.shape[2])), place
    return rows[:, -place.shape[1] :], place


def uniforms(batch: int, n: int, generator: Generators = None) -> Float[Tensor, "b n"]:
    """One number in [0, 1) for every token, drawn row by row from a generator of its own: a row's
    text does not depend on the rows beside it, nor on how far anyone has gone."""
    if generator is None or isinstance(generator, torch.Generator):
        seeds = torch.randint(2**62, (batch,), generator=generator).tolist()
        generator = [torch.Generator().manual_seed(seed) for seed in seeds]
    if len(generator) != batch:
        raise ArmdError(f"{len(generator)} generators do not fit {batch} rows; give one for each")
    return torch.stack([torch.rand(n, dtype=torch.float64, generator=g) for g in generator])


def _pad(rows: Tensor, value: int | float | bool) -> Tensor:
    """One more column, for padding to point at."""
    return torch.cat([rows, torch.full_like(rows[:, :1], value)], 1)


def _seen(text: Tensor, real: Tensor, vocabulary: int) -> Bool[Tensor, "b v"]:
    """Which tokens each row has."""
    count = torch.zeros(len(text), vocabulary, device=text.device)
    return count.scatter_add_(1, text, real.float()) > 0


def _ended(text: Tensor, known: Tensor, written: Tensor, eos: int) -> Bool[Tensor, "b"]:
    """Rows with an EOS of their own, everything before it written."""
    stop = (text == eos) & written & ~known
    behind = stop.cumsum(1) > 0
    return stop.any(1) & (written | behind).all(1)


def _check(model: ArmdLM, canvas: Canvas) -> None:
    config, (_, n) = model.config, canvas.tokens.shape
    if n > config.max_length:
        raise ArmdError(
            f"length {n} passes the model's max_length {config.max_length}; ask for less"
        )
    given = canvas.tokens[canvas.known]
    if len(given) and not 0 <= int(given.min()) <= int(given.max()) < config.vocab_size:
        raise ArmdError(
            f"a given token is outside the vocabulary of {config.vocab_size}; is this the model's "
            "own tokenizer?"
        )
    if model.any_order:
        model.check_order(canvas.order)
    elif not (canvas.order.forward and canvas.is_prefix):
        raise ArmdError("query='shift' is autoregressive: it writes left to right after a prompt")
