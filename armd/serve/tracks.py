"""Tracks: where do the texts of a pass stand, and what does it draw for each?"""

from collections.abc import Sequence
from itertools import accumulate

import torch

from ..errors import ArmdError
from ..generation.decode_plan import Course, Limits
from ..generation.forward import Part, advance_together
from ..generation.kv_cache import Cache, Mark, Placing
from ..generation.native_step import Line, Pen
from ..generation.ragged_layers import FEW
from ..generation.sampling import NO_NUMBERS, Sampling, draw
from ..generation.state import check, uniforms
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Int, Tensor
from .events import TokenOutput, TopLogprob


class Track:
    """One text being written, filled as `filling.Filling` fills a canvas of one row."""

    def __init__(
        self,
        model: ArmdLM,
        course: Course,
        cache: Cache,
        *,
        sampling: Sampling,
        generator: torch.Generator,
        eos: int | None = None,
        rivals: int = 0,
    ) -> None:
        check_course(model, course)
        self.course, self.cache, self.sampling = course, cache, sampling
        self.eos, self.rivals = eos, rivals
        chances = uniforms(1, len(course.tokens), [generator])[0].tolist()
        self.line = Line(cache, course, chances, sampling.choice)
        self.written = list(course.known)
        self.seen = None
        if sampling.repetition_penalty != 1:
            shape = (1, model.config.vocab_size)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=model.device)
            given = zip(course.tokens, course.known, strict=True)
            self.seen[0, [token for token, known in given if known]] = True
        self.end: int | None = None
        """Where its first EOS of its own stands."""
        self.ended = False

    @property
    def step(self) -> int:
        return self.line.step

    @property
    def done(self) -> bool:
        return self.ended or self.line.step == self.course.steps

    def put(self, tokens: list[int], logps: list[float]) -> None:
        """Write down what was drawn for this step."""
        for position, token, logp in zip(self.line.next, tokens, logps, strict=True):
            self.line.tokens[position], self.line.logp[position] = token, logp
        if self.seen is not None:
            self.seen[0, tokens] = True
        self.line.go(self.step + 1)

    def take(self, logits: Float[Tensor, "n v"], first: int) -> "StepResult":
        """What the last step drew, from the rows of the logits from `first` on, with its rivals if
        any were asked for."""
        line, known = self.line, self.course.known
        if line.told.broken:
            return ArmdError(NO_NUMBERS)
        wanted = line.last
        rivals: list[tuple[TopLogprob, ...]] = [()] * len(wanted)
        if self.rivals:
            rivals = _top_logprobs(logits[first : first + len(wanted)], self.rivals)
        landed = tuple(
            [
                TokenOutput(position, line.tokens[position], line.logp[position], others)
                for position, others in zip(wanted, rivals, strict=True)
                if not known[position]
            ]
        )
        if self.eos is not None:
            self.ended = self._over(landed, self.eos)
        return landed

    def _over(self, landed: tuple[TokenOutput, ...], eos: int) -> bool:
        """An EOS of its own is there, and everything before it."""
        for one in landed:
            self.written[one.position] = True
            if one.token == eos and (self.end is None or one.position < self.end):
                self.end = one.position
        return self.end is not None and all(self.written[: self.end])


def check_course(model: ArmdLM, course: Course) -> None:
    """Raise unless the model can write this."""
    config, tokens = model.config, course.tokens
    inside = min(tokens) >= 0 and max(tokens) < config.vocab_size
    free = model.any_order and type(model).check_order is ArmdLM.check_order
    if not (free and inside and len(tokens) <= config.max_length):
        check(model, course.canvas())  # which has the words for it


StepResult = tuple[TokenOutput, ...] | Exception
"""What is new of a text; or why there is nothing, which is no fault of the others."""


def step_together(model: ArmdLM, pen: Pen | None, tracks: list[Track]) -> list[StepResult]:
    """One pass for all, but for long prompts, which pass on their own, and a draw for each. Returns
    what is new, track by track."""
    short = [track for track in tracks if track.line.rows <= FEW]
    if pen is None or not all(track.sampling.choice for track in short):
        short = []
    rest = tracks if not short else [track for track in tracks if track not in short]
    landed: dict[Track, StepResult] = {}
    if pen and short:
        landed |= zip(short, _written(pen, short), strict=True)
    if rest:
        landed |= zip(rest, map(_drawn, rest, _pass(model, rest)), strict=True)
    return [landed[track] for track in tracks]


def _written(pen: Pen, tracks: list[Track]) -> list[StepResult]:
    starts = accumulate((track.line.wanted for track in tracks[:-1]), initial=0)
    firsts, logits = list(starts), pen.write([track.line for track in tracks])
    return [track.take(logits, first) for track, first in zip(tracks, firsts, strict=True)]


def _pass(model: ArmdLM, tracks: list[Track]) -> list[Float[Tensor, "k v"]]:
    """The logits of what each track wants."""
    rows = advance_together(model, _parts(model, tracks))
    sizes = [track.line.wanted for track in tracks]
    wanted = [own[0, -size:] for own, size in zip(rows, sizes, strict=True)]
    for track in tracks:
        track.line.grow()
    return list(model.logits(torch.cat(wanted)).split(sizes))


def _parts(model: ArmdLM, tracks: list[Track]) -> list[Part]:
    """The same as a pen is told, in tensors, which are made for all tracks at once."""
    device = model.device
    rows = [_rows(track) for track in tracks]
    tokens, places, asked = (
        _table([number for row in rows for number in row[kind]], device) for kind in range(3)
    )
    x = model.embedding(tokens.clamp(min=0)).where((tokens >= 0)[..., None], model.bos)
    own, more = ([len(row[kind]) for row in rows] for kind in (1, 2))
    cut = (x.split(own, 1), places.split(own, 1), asked.split(more, 1))
    placings = [None if track.step else _placing(track.line.limits, device) for track in tracks]
    each = zip(tracks, *cut, placings, strict=True)
    return [Part(track.cache, row, place, ask, placing) for track, row, place, ask, placing in each]


def _rows(track: Track) -> tuple[list[int], list[int], list[int]]:
    """Tokens that enter, -1 for BOS, their places and those of the query rows; BOS stands at 0. The
    cache may have been written by a pen, which leaves no marks."""
    cache, line, step, ends = track.cache, track.line, track.step, track.course.ends
    tokens, places = [line.tokens[p] for p in line.last], [p + 1 for p in line.last]
    asked = [p + 1 for p in line.next]
    if step:
        cache.mark = Mark(1 + ends[step - 1], ends[step], cache.mark.state)
        return tokens, places, asked
    return [-1, *tokens], [0, *places], [*places, *asked]


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


def _drawn(track: Track, logits: Float[Tensor, "k v"]) -> StepResult:
    course, step = track.course, track.step
    chances = track.line.uniform[course.ends[step] : course.ends[step + 1]]
    given = [course.tokens[p] if course.known[p] else -1 for p in track.line.next]
    uniform = torch.tensor([chances], dtype=torch.float64)
    forced = torch.tensor([given]) if max(given) >= 0 else None
    try:
        token, logp = draw(logits[None], uniform, track.sampling, track.seen, forced)
    except Exception as error:
        return error
    track.put(token[0].tolist(), logp[0].tolist())
    return track.take(logits, 0)


def _top_logprobs(logits: Float[Tensor, "k v"], count: int) -> list[tuple[TopLogprob, ...]]:
    """The most probable tokens of each row."""
    logp = logits.double().log_softmax(-1)
    best = logp.topk(min(count, logp.shape[1]), -1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(map(TopLogprob, tokens, values)) for tokens, values in pairs]


def _table(numbers: Sequence[int], device: torch.device) -> Int[Tensor, "1 n"]:
    return torch.tensor([[*numbers]], dtype=torch.long, device=device)
