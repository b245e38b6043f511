"""Tracks: where do the texts of a pass stand? In plain numbers, because a small model's pass costs
less than a few tensors for each text would; what the pass takes is put together for all of them."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import torch

from ..cache import Cache, Placing
from ..canvas import Canvas
from ..crossing import FEW
from ..errors import ArmdError
from ..fast import FastLM
from ..filling import check, uniforms
from ..modeling_armd import ArmdLM
from ..passes import Part, advance_together
from ..sampling import NO_NUMBERS, Sampling, draw
from ..shapes import Float, Int, Tensor
from ..strokes import Limits, Line, stroke
from .events import Landed, Rival


class Track:
    """One text being written: a canvas of one row, filled as `filling.Filling` fills it."""

    def __init__(
        self,
        model: ArmdLM,
        canvas: Canvas,
        cache: Cache,
        *,
        sampling: Sampling,
        generator: torch.Generator,
        eos: int | None = None,
        rivals: int = 0,
    ) -> None:
        check(model, canvas)
        self.cache, self.sampling = cache, sampling
        self.eos, self.rivals = eos, rivals
        self.position: list[int] = canvas.order.position[0].tolist()
        self.block: list[int] = canvas.order.block[0].tolist()
        self.uniform: list[float] = uniforms(1, len(self.position), [generator])[0].tolist()
        self.text: list[int] = canvas.tokens[0].tolist()
        self.known: list[bool] = canvas.known[0].tolist()
        self.ends = canvas.ends_by_row[0]
        self.written = list(self.known)
        self.seen = None
        if sampling.repetition_penalty != 1:
            shape = (1, model.config.vocab_size)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=model.device)
            self.seen[0, canvas.tokens[0][canvas.known[0]]] = True
        self.step, self.ended = 0, False

    @property
    def done(self) -> bool:
        return self.ended or self.step == len(self.ends) - 1

    @property
    def entering(self) -> list[int]:
        """The positions that the step before filled; at first those given."""
        return self.position[self.ends[self.step - 1] if self.step else 0 : self.ends[self.step]]

    @property
    def wanted(self) -> list[int]:
        """The positions that this step fills."""
        return self.position[self.ends[self.step] : self.ends[self.step + 1]]

    @property
    def rows(self) -> int:
        """How many rows it has in the next pass."""
        if self.step:
            return self.ends[self.step + 1] - self.ends[self.step - 1]
        return 1 + self.ends[0] + self.ends[1]

    @property
    def chances(self) -> list[float]:
        return self.uniform[self.ends[self.step] : self.ends[self.step + 1]]

    @property
    def given(self) -> list[int]:
        """What is known of the positions wanted, or -1."""
        return [self.text[p] if self.known[p] else -1 for p in self.wanted]

    def limits(self) -> Limits:
        """What its first rows see: those given the blocks before them, and their own as context;
        the first step all that is given."""
        count, upto = self.ends[0], self.ends[1]
        block, wanted = self.block[:count], upto - count
        before = [bisect_left(block, own) for own in block]
        behind = [bisect_right(block, own) for own in block]
        return Limits(
            context=[1, *(b + 1 for b in behind)],
            strict=[*(b + 1 for b in before), *[count + 1] * wanted],
            query=[*behind, *[upto] * wanted],
        )

    def line(self) -> Line:
        """Its part in a stroke."""
        entering, wanted = self.entering, self.wanted
        tokens, places = [self.text[p] for p in entering], [p + 1 for p in entering]
        asked, limits = [p + 1 for p in wanted], None
        if self.step == 0:
            tokens, places, asked = [-1, *tokens], [0, *places], [*places, *asked]
            limits = self.limits()
        choice = self.sampling.choice or (1.0, 0.0, 0.0, 0)
        return Line(self.cache, tokens, places, asked, self.chances, choice, self.given, limits)

    def take(
        self, tokens: list[int], logps: list[float], rivals: list[tuple[Rival, ...]]
    ) -> tuple[Landed, ...]:
        """Write down what was drawn for this step. Returns what is new, with its rivals if any
        were asked for."""
        landed = []
        for place, (position, token) in enumerate(zip(self.wanted, tokens, strict=True)):
            if not self.known[position]:
                others = rivals[place] if rivals else ()
                landed.append(Landed(position, token, logps[place], others))
                self.text[position], self.written[position] = token, True
        if self.seen is not None:
            self.seen[0, tokens] = True
        self.step += 1
        self.ended = self.eos is not None and self._over(self.eos)
        return tuple(landed)

    def _over(self, eos: int) -> bool:
        """An EOS of its own is there, and everything before it."""
        if eos not in self.text:
            return False
        own = (
            position
            for position, token in enumerate(self.text)
            if token == eos and self.written[position] and not self.known[position]
        )
        first = next(own, None)
        return first is not None and all(self.written[:first])


Landing = tuple[Landed, ...] | Exception
"""What is new of a text; or why there is nothing, which is no fault of the others."""
Written = tuple[list[int], list[float], Float[Tensor, "k v"]]
"""Tokens of a track, their log-probabilities, and the logits that they were drawn from."""


def step_together(model: ArmdLM, tracks: list[Track]) -> list[Landing]:
    """One pass for all, but for long prompts, which pass on their own, and a draw for each. Returns
    what is new, track by track."""
    short = [track for track in tracks if track.rows <= FEW]
    able = isinstance(model, FastLM) and model.whole
    if not able or not all(track.sampling.choice for track in short):
        short = []
    rest = [track for track in tracks if track not in short]
    landed: dict[Track, Landing] = {}
    if short:
        for track, written in zip(short, _stroke(cast(FastLM, model), short), strict=True):
            landed[track] = _landing(track, *written)
    if rest:
        for track, logits in zip(rest, _pass(model, rest), strict=True):
            landed[track] = _drawn(track, logits)
    return [landed[track] for track in tracks]


def _landing(
    track: Track, tokens: list[int], logps: list[float], logits: Float[Tensor, "k v"]
) -> Landing:
    if min(tokens) < 0:
        return ArmdError(NO_NUMBERS)
    rivals = _rivals(logits, track.rivals) if track.rivals else []
    return track.take(tokens, logps, rivals)


def _stroke(model: FastLM, tracks: list[Track]) -> list[Written]:
    tokens, logps, logits = stroke(model, [track.line() for track in tracks])
    ends = list(accumulate(len(track.wanted) for track in tracks))
    parts = [slice(end - len(track.wanted), end) for track, end in zip(tracks, ends, strict=True)]
    return [(tokens[part], logps[part], logits[part]) for part in parts]


def _pass(model: ArmdLM, tracks: list[Track]) -> list[Float[Tensor, "k v"]]:
    """The logits of what each track wants."""
    rows = advance_together(model, _parts(model, [track.line() for track in tracks]))
    sizes = [len(track.wanted) for track in tracks]
    wanted = [own[0, -size:] for own, size in zip(rows, sizes, strict=True)]
    return list(model.logits(torch.cat(wanted)).split(sizes))


def _parts(model: ArmdLM, lines: list[Line]) -> list[Part]:
    """The same lines in tensors, which are made for all of them at once."""
    device = model.device
    tokens, places, asked = (
        _table([number for line in lines for number in getattr(line, name)], device)
        for name in ("tokens", "places", "asked")
    )
    rows = model.embedding(tokens.clamp(min=0)).where((tokens >= 0)[..., None], model.bos)
    own, more = ([len(getattr(line, name)) for line in lines] for name in ("places", "asked"))
    cut = (rows.split(own, 1), places.split(own, 1), asked.split(more, 1))
    return [
        Part(line.cache, row, place, ask, line.limits and _placing(line.limits, device))
        for line, row, place, ask in zip(lines, *cut, strict=True)
    ]


def _placing(limits: Limits, device: torch.device) -> Placing:
    own, asked = len(limits.context), len(limits.strict)
    return Placing(
        context_slot=_table(range(own), device),
        context_limit=_table(limits.context, device),
        strict_limit=_table(limits.strict, device),
        query_slot=_table(range(asked), device),
        query_limit=_table(limits.query, device),
        context=own,
        query=asked,
    )


def _drawn(track: Track, logits: Float[Tensor, "k v"]) -> Landing:
    uniform = torch.tensor([track.chances], dtype=torch.float64)
    forced = torch.tensor([track.given]) if max(track.given) >= 0 else None
    try:
        token, logp = draw(logits[None], uniform, track.sampling, track.seen, forced)
    except Exception as error:
        return error
    return _landing(track, token[0].tolist(), logp[0].tolist(), logits)


def _rivals(logits: Float[Tensor, "k v"], count: int) -> list[tuple[Rival, ...]]:
    """The most probable tokens of each row."""
    logp = logits.double().log_softmax(-1)
    best = logp.topk(min(count, logp.shape[1]), -1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(map(Rival, tokens, values)) for tokens, values in pairs]


def _table(numbers: Sequence[int], device: torch.device) -> Int[Tensor, "1 n"]:
    return torch.tensor([[*numbers]], dtype=torch.long, device=device)
