"""A course: which tokens of one text are given, and in which order and steps the others come."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import filling
from ..canvas import Canvas, from_blanks, steps_of
from ..modeling_armd import ArmdLM
from ..order import Order


@dataclass(frozen=True)
class Course:
    """A canvas of one row in plain numbers: a request's few would cost more as tensors than the
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
    def of(cls, canvas: Canvas) -> "Course":
        order = canvas.order
        return cls(
            tokens=canvas.tokens[0].tolist(),
            known=canvas.known[0].tolist(),
            position=order.position[0].tolist(),
            block=order.block[0].tolist(),
            ends=canvas.ends_by_row[0],
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


def check(model: ArmdLM, course: Course) -> None:
    """Raise unless the model can write this."""
    config, tokens = model.config, course.tokens
    inside = min(tokens) >= 0 and max(tokens) < config.vocab_size
    free = model.any_order and type(model).check_order is ArmdLM.check_order
    if not (free and inside and len(tokens) <= config.max_length):
        filling.check(model, course.canvas())  # which has the words for it
