"""A stroke: one pass and its draws for many texts, from plain numbers to plain numbers, in one call
of C. Where a model is small, making tensors would take longer than the pass."""

from collections.abc import Sequence
from ctypes import Array, addressof, byref, c_double, c_long
from dataclasses import dataclass
from typing import NamedTuple

from .cache import Cache, Mark
from .fast import FastLM
from .native import Choice, PartRows, library
from .shapes import Float, Tensor


class Limits(NamedTuple):
    """How many rows before it each row may see when a text begins, BOS being one: the context rows
    in the two-stream layers, the query rows there, and the query rows in the layers above."""

    context: list[int]
    strict: list[int]
    query: list[int]


@dataclass(frozen=True)
class Line:
    """A text's part in a stroke: what enters, and what is drawn next. Places count BOS as 0, so
    tokens stand at 1..n."""

    cache: Cache
    """Of one row. Its state grows in place, so that it can't be rewound to a mark before this."""
    tokens: list[int]
    """Those drawn last; at first BOS, which is -1, and all that are given."""
    places: list[int]
    asked: list[int]
    """The places of the query rows; tokens are drawn for the last of them."""
    uniform: list[float]
    """One number in [0, 1) for each token to be drawn."""
    choice: tuple[float, float, float, int]
    """How they are chosen: the fields of native.Choice."""
    given: list[int]
    """For each a token that must be taken, or -1."""
    limits: Limits | None = None
    """At first; later all rows see all that is there."""


def stroke(
    model: FastLM, lines: Sequence[Line]
) -> tuple[list[int], list[float], Float[Tensor, "n v"]]:
    """The tokens drawn, line after line, their log-probabilities, and the logits."""
    entered = [_enter(line) for line in lines]
    parts = (PartRows * len(lines))(*(told for told, _ in entered))
    tables = max((line.cache for line in lines), key=lambda cache: len(cache.code))
    tokens, places, asked, given = (
        _longs([number for line in lines for number in getattr(line, name)])
        for name in ("tokens", "places", "asked", "given")
    )
    uniform = _doubles([number for line in lines for number in line.uniform])
    choices = [choice for line in lines for choice in [line.choice] * len(line.uniform)]
    count = len(uniform)
    logits = model.bos.new_empty(count, model.config.vocab_size)
    token, logp = (c_long * count)(), (c_double * count)()
    failed = library().write_pass(
        *(byref(model.address()), parts, len(lines)),
        *(tables.code.data_ptr(), tables.turn.data_ptr(), tokens, places, asked),
        *(uniform, given, (Choice * count)(*choices), logits.data_ptr(), token, logp),
    )
    if failed:
        raise MemoryError("no memory for a decoding pass")
    return list(token), list(logp), logits


def _enter(line: Line) -> tuple[tuple[int | None, ...], "list[Array[c_long]]"]:
    """What C is told of a line, and what holds the tables whose addresses it is; the mark is set
    behind the line."""
    cache, mark, limits = line.cache, line.cache.mark, line.limits
    own, asked = len(line.tokens), len(line.asked)
    cache.mark = Mark(mark.context + own, mark.query + asked, mark.state)
    ((keys, values),) = cache.places
    state = mark.state.data_ptr()
    strict = low = high = None
    held = []
    if limits is not None:
        each = (limits.strict, limits.context + limits.strict, limits.query)
        held = [_longs(table) for table in each]
        strict, low, high = map(addressof, held)
    starts = (mark.context, cache.mark.context, mark.query, cache.mark.query)
    tables = (state, state, strict, None, low, None, high)
    counts = (own, asked, *starts, cache.spare, len(line.uniform))
    return (keys.address, values.address, *tables, *counts), held


def _longs(numbers: list[int]) -> "Array[c_long]":
    return (c_long * len(numbers))(*numbers)


def _doubles(numbers: list[float]) -> "Array[c_double]":
    return (c_double * len(numbers))(*numbers)
