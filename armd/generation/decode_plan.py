"""A course: which tokens of one text are given, and in which order and steps the others come."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..model.order import Order
from .plan import Canvas, from_blanks, steps_of


@dataclass(frozen=True)
class Course:
    """One row of a canvas in plain numbers: as tensors, those of a request would cost more than the
    pass that they are for."""

    tokens: list[int]
    """In natural order, 0 in blanks."""
    known: list[bool]
    position: list[int]
    """Where the tokens stand, in the order in which they are written; their blocks."""
    block: list[int]
    ends: list[int]
    """How many are there after the prefill and after each step."""

    @classmethod
    def of(cls, canvas: Canvas, row: int = 0) -> "Course":
        order = canvas.order
        return cls(
            tokens=canvas.tokens[row].tolist(),
            known=canvas.known[row].tolist(),
            position=order.position[row].tolist(),
            block=order.block[row].tolist(),
            ends=canvas.ends_by_row[row],
        )

    @property
    def steps(self) -> int:
        return len(self.ends) - 1

    def canvas(self) -> Canvas:
        order = Order(torch.tensor(self.position), torch.tensor(self.block))
        return from_blanks(torch.tensor([self.tokens]), torch.tensor([self.known]), order=order)


def completing(
    tokens: Sequence[int], known: Sequence[bool], position: list[int], block: list[int]
) -> Course:
    """What is known first, left to right, then the blanks in an order of their own."""
    given, blank = (
        [at for at, there in enumerate(known) if there is want] for want in (True, False)
    )
    blocks = [*range(len(given)), *(len(given) + number for number in block)]
    return Course(
        tokens=[token if there else 0 for token, there in zip(tokens, known, strict=True)],
        known=list(known),
        position=[*given, *(blank[at] for at in position)],
        block=blocks,
        ends=steps_of(blocks, [True] * len(given) + [False] * len(blank)),
    )


class Limits(NamedTuple):
    """How many rows before it each row may see when a text begins, BOS being one: the context rows
    in the two-stream layers, the query rows there, and the query rows in the layers above."""

    context: list[int]
    strict: list[int]
    query: list[int]


def first_limits(course: Course) -> Limits:
    """Those given see the blocks before them, and their own as context; the first step sees all
    that is given."""
    count, upto = course.ends[0], course.ends[min(1, course.steps)]
    block, wanted = course.block[:count], upto - count
    before = [bisect_left(block, own) for own in block]
    behind = [bisect_right(block, own) for own in block]
    return Limits(
        context=[1, *(b + 1 for b in behind)],
        strict=[*(b + 1 for b in before), *[count + 1] * wanted],
        query=[*behind, *[upto] * wanted],
    )
