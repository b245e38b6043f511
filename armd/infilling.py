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
from .generation.plan import DecodePlan, completing, from_blanks, strided
from .model.modeling_armd import ArmdLM
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
    if candidates == 1:
        return complete(model, partial(from_blanks, tokens, known), **options)
    return _with_candidates(model, from_blanks(tokens, known), candidates, **options)


def _with_candidates(
    model: ArmdLM,
    plans: list[DecodePlan],
    candidates: int,
    *,
    streams: int = 1,
    generator: Generators = None,
    **sampling: Any,
) -> Int[Tensor, "b n"]:
    if candidates < 1:
        raise ArmdError(f"candidates {candidates} must be at least 1")
    chosen, rows = Sampling(**sampling), []
    for plan, own in zip(plans, generators_per_row(generator, len(plans)), strict=True):
        text, known = list(plan.tokens), list(plan.known)
        for blank in blanks_of(known):
            options = {"streams": streams, "sampling": chosen, "generator": own}
            found = draw_candidates(model, text, known, blank, candidates, **options)
            uniform = torch.rand((), dtype=torch.float64, generator=own)
            text = found.texts[int(invert(found.weight.softmax(0).cumsum(0), uniform))]
            known[blank.start : blank.end] = [True] * (blank.end - blank.start)
        rows.append(text)
    return torch.tensor(rows, device=model.device)


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

    texts: list[list[int]]
    """The whole sequence with each of them."""
    drawn: Float[Tensor, "k"]
    """log p of each, both sides known, as it was drawn."""
    weight: Float[Tensor, "k"]
    """log of p of fill and text behind it, left to right, over p of the fill as drawn."""


def draw_candidates(
    model: ArmdLM,
    text: list[int],
    known: list[bool],
    blank: Blank,
    count: int,
    *,
    sampling: Sampling,
    generator: torch.Generator | None = None,
    streams: int = 1,
    given: list[int] | None = None,
) -> Candidates:
    """Fills of the leftmost blank of a sequence. `given` is a whole sequence, whose fill of the
    blank is the last candidate instead of one that is drawn."""
    plan = _of_leftmost(text, known, blank, streams)
    plans = [plan] * count
    if given is not None:
        there = [old or blank.start <= at < blank.end for at, old in enumerate(known)]
        filled = [new if own else 0 for new, own in zip(given, there, strict=True)]
        plans[-1] = replace(plan, tokens=filled, known=there)
    drawn = _decoded(model, plans, sampling, generator)
    texts = [made.tokens for made in drawn]
    left = _decoded(model, [_left_to_right(one, blank) for one in texts], Sampling())
    fills = _sums(drawn, slice(blank.start, blank.end))
    return Candidates(texts, fills, _sums(left, slice(blank.start, blank.behind)) - fills)


def _of_leftmost(text: list[int], known: list[bool], blank: Blank, streams: int) -> DecodePlan:
    """All that is known first, then this blank; others stay blank."""
    size = blank.end - blank.start
    position, block = strided(size, min(streams, size))
    others = range(size, known.count(False))
    blocks = [*block, *(at + len(block) for at in others)]
    plan = completing(text, known, [*position, *others], blocks)
    return replace(plan, step_ends=plan.step_ends[: block[-1] + 2])


def _left_to_right(text: list[int], blank: Blank) -> DecodePlan:
    """The text up to some tokens behind the blank, all of it given; from the blank on each token
    has a step."""
    places = list(range(blank.behind))
    ends = list(range(blank.start, blank.behind + 1))
    return DecodePlan(text[: blank.behind], [True] * blank.behind, places, places, ends)


class Decoded(NamedTuple):
    tokens: list[int]
    logp: list[float]


def _decoded(
    model: ArmdLM,
    plans: list[DecodePlan],
    sampling: Sampling,
    generator: torch.Generator | None = None,
) -> list[Decoded]:
    """Sequences that are given the same tokens first, taken to the end of their plans. In C these
    are read once, all but the last of them."""
    found = []
    for at in range(0, len(plans), AT_ONCE):
        some = plans[at : at + AT_ONCE]
        sequences = make_sequences(model, some, sampling, generator=generator)
        first, *others = sequences
        if Decoder.is_native(model) and first.read_at_most(plans[0].step_ends[0] - 1):
            next(decode(model, [first]))  # reads that and draws nothing
            for one in others:
                one.cache.take(first.cache, first.read)
                one.cache.prefix_state.copy_(first.cache.prefix_state)
                one.cache.prefix_rows, one.read = first.cache.prefix_rows, first.read
        for _ in decode(model, sequences):
            pass
        found += [Decoded(one.tokens.tolist(), one.logp.tolist()) for one in sequences]
    return found


def _sums(made: list[Decoded], places: slice) -> Float[Tensor, "k"]:
    """log p of some tokens of each."""
    return torch.tensor([sum(one.logp[places]) for one in made], dtype=torch.float64)
