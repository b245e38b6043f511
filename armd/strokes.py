"""A stroke: one pass and its draws for many texts, from plain numbers to plain numbers, in one call
of C. Where a model is small, making tensors would take longer than the pass."""

from collections.abc import Sequence
from ctypes import Array, byref, c_double, c_long
from dataclasses import dataclass

from .cache import Cache, Mark
from .fast import FastLM
from .native import Choice, PartRows, library
from .shapes import Float, Tensor


@dataclass(frozen=True)
class Line:
    """A text's part in a stroke: what was drawn last, and what is drawn next. Places count BOS as
    0, so tokens stand at 1..n."""

    cache: Cache
    """Of one row. Its state grows in place, so that it can't be rewound to a mark before this."""
    tokens: list[int]
    places: list[int]
    wanted: list[int]
    uniform: list[float]
    """One number in [0, 1) for each token wanted."""
    choice: tuple[float, float, float, int]
    """How they are chosen: the fields of native.Choice."""
    given: list[int]
    """A token that must be taken, or -1."""


def stroke(
    model: FastLM, lines: Sequence[Line]
) -> tuple[list[int], list[float], Float[Tensor, "n v"]]:
    """The tokens drawn, line after line, their log-probabilities, and the logits."""
    parts = (PartRows * len(lines))(*map(_enter, lines))
    tables = max((line.cache for line in lines), key=lambda cache: len(cache.code))
    drawn, places, wanted, given = (
        _longs([number for line in lines for number in getattr(line, name)])
        for name in ("tokens", "places", "wanted", "given")
    )
    uniform = _doubles([number for line in lines for number in line.uniform])
    choices = [choice for line in lines for choice in [line.choice] * len(line.wanted)]
    count = len(wanted)
    logits = model.bos.new_empty(count, model.config.vocab_size)
    token, logp = (c_long * count)(), (c_double * count)()
    failed = library().write_pass(
        *(byref(model.address()), parts, len(lines)),
        *(tables.code.data_ptr(), tables.turn.data_ptr(), drawn, places, wanted),
        *(uniform, given, (Choice * count)(*choices), logits.data_ptr(), token, logp),
    )
    if failed:
        raise MemoryError("no memory for a decoding pass")
    return list(token), list(logp), logits


def _enter(line: Line) -> tuple[int | None, ...]:
    """What C is told of a line; the mark is set behind it."""
    cache, mark = line.cache, line.cache.mark
    context, query, state = mark.context, mark.query, mark.state
    grown = (context + len(line.tokens), query + len(line.wanted))
    cache.mark = Mark(*grown, state)
    ((keys, values),) = cache.places
    at = state.data_ptr()
    counts = (len(line.tokens), len(line.wanted), context, grown[0], query, grown[1], cache.spare)
    return (keys.address, values.address, at, at, *[None] * 5, *counts)


def _longs(numbers: list[int]) -> "Array[c_long]":
    return (c_long * len(numbers))(*numbers)


def _doubles(numbers: list[float]) -> "Array[c_double]":
    return (c_double * len(numbers))(*numbers)
