"""`infill`: blanks with text on both sides, with one or with several candidates for each.

Candidates are drawn with both sides known. How well one leads to the text behind it, a model that
was trained left to right says best: by the probability of the whole left to right. One of them is
kept, in proportion to that probability over the one that it was drawn with (importance resampling).
The more there are, the nearer a fill comes to what the left-to-right model, both sides known, would
draw.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from .errors import ArmdError
from .generation.api import Generators, complete, decode, make_sequences
from .generation.decoder import Decoder
from .generation.kv_cache import make_cache
from .generation.plan import DecodePlan, from_blanks, plan_of, strided
from .generation.sequence import Sequence
from .model.modeling_armd import ArmdLM
from .model.order import Order
from .model.sampling import Sampling, invert
from .model.shapes import Bool, Float, Int, Tensor
from .runtime.seeds import generators_per_row

BEHIND = 32
"""Tokens behind a blank that say how well a candidate fits."""
AT_ONCE = 32
"""Candidates whose caches are held together."""


def infill(
    model: ArmdLM,
    tokens: Int[Tensor, "b n"],
    known: Bool[Tensor, "*b n"],
    *,
    candidates: int = 1,
    **options: Any,
) -> Int[Tensor, "b n"]:
    """Fill the blanks, where `known` is False; everything known stays as it is. Options as for
    `stream`. With several `candidates` blanks are filled one by one, the leftmost first."""
    if not isinstance(known, Tensor) or known.dtype != torch.bool:
        raise ArmdError("known must be a tensor of bools; write torch.tensor(known).bool()")
    if candidates == 1:
        return complete(model, partial(from_blanks, tokens, known), **options)
    return choose_fills(model, from_blanks(tokens, known), candidates, **options)[0]


def choose_fills(
    model: ArmdLM,
    plans: list[DecodePlan],
    candidates: int,
    *,
    streams: int = 1,
    order: Order | None = None,
    generator: Generators = None,
    eos: int | None = None,
    **sampling: Any,
) -> tuple[Int[Tensor, "b n"], int]:
    """The same with several candidates, and how often the model was called."""
    if not isinstance(candidates, int) or candidates < 1:
        raise ArmdError(f"candidates {candidates} must be a whole number, at least 1")
    if order is not None or eos is not None:
        raise ArmdError("with several candidates blanks have their own order, and no EOS ends them")
    chosen, rows, calls = Sampling(**sampling), [], 0
    for plan, own in zip(plans, generators_per_row(generator, len(plans)), strict=True):
        filling = Filling(model, plan.tokens, plan.known, streams=streams)
        for blank in filling.blanks:
            found = filling.draw(blank, candidates, sampling=chosen, generator=own)
            uniform = torch.rand((), dtype=torch.float64, generator=own)
            index = int(invert(found.weight.softmax(0).cumsum(0), uniform))
            filling.keep(blank, found.fills[index])
        rows.append(filling.text)
        calls += filling.drawing.calls + filling.scoring.calls
    return torch.tensor(rows, device=model.device), calls


class Blank(NamedTuple):
    """A run of unknown positions, and how far the known text behind it is looked at."""

    start: int
    end: int
    behind: int


def blanks_of(known: list[bool]) -> list[Blank]:
    """All blanks, from left to right."""
    edges = [at for at, (a, b) in enumerate(pairwise([True, *known, True])) if a != b]
    starts, ends = edges[::2], edges[1::2]
    spans = zip(starts, ends, [*starts, len(known)][1:], strict=True)
    return [Blank(start, end, min(end + BEHIND, next_one)) for start, end, next_one in spans]


class Candidates(NamedTuple):
    """Fills of one blank."""

    fills: list[list[int]]
    drawn: Float[Tensor, "k"]
    """log p of each, both sides known, as it was drawn."""
    weight: Float[Tensor, "k"]
    """log of p of fill and text behind it, left to right, over p of the fill as drawn."""


class Filling:
    """A sequence whose blanks are filled one after the other, the leftmost first."""

    def __init__(
        self, model: ArmdLM, text: list[int], known: list[bool], *, streams: int = 1
    ) -> None:
        self.text, self.known, self.blanks = list(text), list(known), blanks_of(known)
        self.position = [at for at, there in enumerate(known) if there]
        self.block = list(range(len(self.position)))
        for start, end, _ in self.blanks:
            position, block = strided(end - start, min(streams, end - start))
            self.position += [start + at for at in position]
            first = len(self.block) and self.block[-1] + 1
            self.block += [first + number for number in block]
        # what is known, then blank after blank; and the text from left to right
        self.drawing, self.scoring = (Reader(model, len(text)) for _ in range(2))

    def draw(
        self,
        blank: Blank,
        count: int,
        *,
        sampling: Sampling,
        generator: torch.Generator | None = None,
        given: list[int] | None = None,
    ) -> Candidates:
        """Fills of the leftmost blank. `given` is one that takes the place of the last drawn."""
        start, end, behind = blank
        plans = [self._plan(blank)] * count
        if given is not None:
            plans[-1] = self._plan(blank, given)
        drawn = self.drawing.decoded(plans, sampling, generator)
        fills = [made.tokens[start:end] for made in drawn]
        log_q = _sums(drawn, slice(start, end))
        plans = [self._left_to_right(blank, fill) for fill in fills]
        left = self.scoring.decoded(plans, Sampling())
        return Candidates(fills, log_q, _sums(left, slice(start, behind)) - log_q)

    def keep(self, blank: Blank, fill: list[int]) -> None:
        self.text[blank.start : blank.end] = fill
        self.known[blank.start : blank.end] = [True] * len(fill)

    def _plan(self, blank: Blank, given: list[int] | None = None) -> DecodePlan:
        """Up to this blank, to be drawn or with given tokens; later ones stay blank."""
        plan = plan_of(self.text, self.known, self.position, self.block)
        last = plan.step_ends.index(plan.step_ends[0] + blank.end - blank.start)
        plan = replace(plan, step_ends=plan.step_ends[: last + 1])
        if given is None:
            return plan
        there = [old or blank.start <= at < blank.end for at, old in enumerate(self.known)]
        tokens = [*plan.tokens[: blank.start], *given, *plan.tokens[blank.end :]]
        return replace(plan, tokens=tokens, known=there)

    def _left_to_right(self, blank: Blank, fill: list[int]) -> DecodePlan:
        """Up to some tokens behind the blank, all of it given; from the blank on each token has a
        step."""
        start, end, behind = blank
        places, ends = list(range(behind)), list(range(start, behind + 1))
        tokens = [*self.text[:start], *fill, *self.text[end:behind]]
        return DecodePlan(tokens, [True] * behind, places, places, ends)


class Decoded(NamedTuple):
    tokens: list[int]
    logp: list[float]


class Reader:
    """Decodes sequences that are given the same tokens first. In C these are read once, all but the
    last of them, and what was read for one blank is there for the next."""

    def __init__(self, model: ArmdLM, length: int) -> None:
        self.model, self.slots, self.native = model, 0, Decoder.is_native(model)
        self.calls = 0
        self.cache = make_cache(model, batch=1, length=length) if self.native else None

    def decoded(
        self, plans: list[DecodePlan], sampling: Sampling, generator: torch.Generator | None = None
    ) -> list[Decoded]:
        """Sequences taken to the end of their plans."""
        self._read(plans[0])
        found = []
        for at in range(0, len(plans), AT_ONCE):
            some = plans[at : at + AT_ONCE]
            sequences = make_sequences(self.model, some, sampling, generator=generator)
            for sequence in sequences:
                self._hand_over(sequence)
            self.calls += sum(1 for _ in decode(self.model, sequences))
            found += [Decoded(one.tokens.tolist(), one.logp.tolist()) for one in sequences]
        return found

    def _read(self, plan: DecodePlan) -> None:
        if self.cache is None:
            return
        nothing = {"sampling": Sampling(), "generator": torch.Generator()}
        reader, there = Sequence(self.model, plan, self.cache, **nothing), max(self.slots - 1, 0)
        reader.read = self.slots
        if (left := plan.step_ends[0] - 1 - there) > 0 and reader.read_at_most(left):
            next(decode(self.model, [reader]))  # reads these and draws nothing
            self.calls += 1
            self.slots = reader.read

    def _hand_over(self, sequence: Sequence) -> None:
        if self.cache is None or not self.slots:
            return
        sequence.cache.take(self.cache, self.slots)
        sequence.cache.prefix_state.copy_(self.cache.prefix_state)
        sequence.cache.prefix_rows, sequence.read = self.cache.prefix_rows, self.slots


def _sums(made: list[Decoded], places: slice) -> Float[Tensor, "k"]:
    """log p of some tokens of each."""
    return torch.tensor([sum(one.logp[places]) for one in made], dtype=torch.float64)
