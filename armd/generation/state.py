"""Filling: where does one canvas stand between two passes of the model?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import ArmdError
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Bool, Float, Int, Tensor
from .forward import Part
from .kv_cache import Cache, make_cache
from .plan import Canvas
from .sampling import Sampling, draw

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


class Filling:
    """A canvas being filled. Each step is three calls: `part` says which rows the next pass takes,
    `asked` picks, of the rows it gives, those of this step, and `take` draws tokens from their
    logits; or, where they are drawn elsewhere, two: `turn` and `put`. Whoever calls may let many
    fillings share a pass. Position n, one past the end, is where
    padding goes."""

    def __init__(
        self,
        model: ArmdLM,
        canvas: Canvas,
        *,
        sampling: Sampling,
        generator: Generators = None,
        eos: int | None = None,
        cache: Cache | None = None,
    ) -> None:
        check(model, canvas)
        device, (batch, n) = model.device, canvas.tokens.shape
        self.model, self.canvas, self.sampling, self.eos = model, canvas, sampling, eos
        self.cache = make_cache(model, batch=batch, length=n) if cache is None else cache
        self.uniform = _pad(uniforms(batch, n, generator), 0.0)
        if device.type != "mps":  # which knows no float64
            self.uniform = self.uniform.to(device)
        self.position = _pad(canvas.order.position.to(device), n)
        self.known = _pad(canvas.known.to(device), True)
        self.text = _pad(canvas.tokens.to(device), 0)
        self.seen = None
        if sampling.repetition_penalty != 1:
            given, vocabulary = self.known[:, :n], model.config.vocab_size
            self.seen = _seen(self.text[:, :n], given, vocabulary)
        self.written = self.known.clone()
        self.over, self.ended = False, False  # an EOS was drawn; every row has ended
        self.go_to(0)

    def go_to(self, step: int) -> None:
        """Stand behind step `step`; 0: before the first pass."""
        self.index = step
        self._look_at(step)

    @property
    def done(self) -> bool:
        return self.ended or self.index == self.canvas.steps

    def turn(self) -> None:
        """Look at the places of the next step."""
        self._look_at(self.index + 1)

    def _look_at(self, step: int) -> None:
        self.slots = self.canvas.slots(step)
        self.at = _look(self.position, self.slots)

    def part(self) -> Part:
        """Enter what the step before drew (before the first: BOS and all that is given), and the
        query rows of this step."""
        device, drawn_at, cache = self.text.device, self.at, self.cache
        self.turn()
        if self.index == 0:
            return opening(self.model, self.canvas, cache)
        x = self.model.embedding(self.text.gather(1, drawn_at))
        placing = self.canvas.placing(self.index + 1, cache.spare)
        return Part(cache, x, drawn_at + 1, self.at + 1, placing and placing.to(device))

    def asked(self, rows: Float[Tensor, "b r d"]) -> Float[Tensor, "b k d"]:
        """Of the rows that a pass gives, those of this step."""
        if self.model.config.query != "shift":
            return rows[:, -self.at.shape[1] :]
        # the row of the last token itself predicts the next
        newest = torch.zeros_like(self.at[:, 0])
        if self.index == 0:
            newest = self.canvas.ends[:, 0].to(rows.device)
        return rows.gather(1, newest[:, None, None].expand(-1, 1, rows.shape[2]))

    def take(self, logits: Float[Tensor, "b k v"]) -> Step:
        """Draw this step's tokens and write them down."""
        forced = None
        if self.canvas.forced:
            forced = self.text.gather(1, self.at).where(self.known.gather(1, self.at), -1)
        chances = _look(self.uniform, self.slots)
        return self.put(*draw(logits, chances, self.sampling, self.seen, forced))

    def put(self, token: Int[Tensor, "b k"], logp: Float[Tensor, "b k"]) -> Step:
        """Write down the tokens drawn for this step; what is known stays."""
        text, at, given = self.text, self.at, None
        if self.over or self.canvas.forced or not self.canvas.alike:  # else all of it is new
            given = self.known.gather(1, at)
            token = text.gather(1, at).where(given, token)
        text.scatter_(1, at, token)
        if self.seen is not None:
            self.seen |= _seen(token, at < text.shape[1] - 1, self.model.config.vocab_size)
        drawn = torch.ones_like(at, dtype=torch.bool) if given is None else ~given
        step = Step(self.index, at, token, logp, drawn)
        if self.eos is not None:
            self.written.scatter_(1, at, True)
            self.over = self.over or bool((token == self.eos).any())
            if self.over:
                self.known |= _ended(text, self.known, self.written, self.eos)[:, None]
                self.ended = bool(self.known.all())
        self.index += 1
        return step


def opening(model: ArmdLM, canvas: Canvas, cache: Cache) -> Part:
    """What enters first: BOS and all that is given. The query rows are those of what is given,
    whose keys the layers above the two streams keep, and those of the first step."""
    device, n = model.device, canvas.tokens.shape[1]
    position, text = _pad(canvas.order.position, n), _pad(canvas.tokens, 0)
    given, first = (_look(position, canvas.slots(step)) for step in (0, 1))
    x = model.context_rows(text.gather(1, given).to(device))
    context = torch.nn.functional.pad(given + 1, (1, 0)).to(device)
    query = torch.cat([given, first], 1).add(1).to(device)
    placing = canvas.placing(1, cache.spare)
    return Part(cache, x, context, query, placing and placing.to(device))


def uniforms(batch: int, n: int, generator: Generators = None) -> Float[Tensor, "b n"]:
    """One number in [0, 1) for every token, drawn row by row from a generator of its own: a row's
    text does not depend on the rows beside it, nor on how far anyone has gone."""
    if generator is None or isinstance(generator, torch.Generator):
        generator = spread(generator, batch)
    if len(generator) != batch:
        raise ArmdError(f"{len(generator)} generators do not fit {batch} rows; give one for each")
    return torch.stack([torch.rand(n, dtype=torch.float64, generator=g) for g in generator])


def spread(generator: torch.Generator | None, batch: int) -> list[torch.Generator]:
    """One generator for each row, out of one for all."""
    seeds = torch.randint(2**62, (batch,), generator=generator).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def _look(table: Tensor, slots: slice | Tensor) -> Tensor:
    """What a table in generation order has in these places."""
    return table[:, slots] if isinstance(slots, slice) else table.gather(1, slots.to(table.device))


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


def check(model: ArmdLM, canvas: Canvas) -> None:
    """Raise unless the model can fill this canvas."""
    config, (_, n) = model.config, canvas.tokens.shape
    if n > config.max_length:
        raise ArmdError(
            f"length {n} passes the model's max_length {config.max_length}; ask for less"
        )
    least, most = canvas.tokens.aminmax()  # in blanks stands a 0
    if not 0 <= int(least) <= int(most) < config.vocab_size:
        raise ArmdError(
            f"a given token is outside the vocabulary of {config.vocab_size}; is this the model's "
            "own tokenizer?"
        )
    if model.any_order:
        model.check_order(canvas.order)
    elif not (canvas.order.is_left_to_right and canvas.is_prefix):
        raise ArmdError("query='shift' is autoregressive: it writes left to right after a prompt")
