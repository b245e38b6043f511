"""What a decode step gives: tokens and log-probabilities, of each sequence or of a batch."""

from dataclasses import dataclass
from typing import NamedTuple

from ..model.shapes import Bool, Float, Int, Tensor


class TopLogprob(NamedTuple):
    """One of the most probable tokens at a position."""

    token: int
    logp: float


class TokenOutput(NamedTuple):
    """One generated token."""

    position: int
    token: int
    logp: float
    top_logprobs: tuple[TopLogprob, ...] = ()
    ends: bool = False
    """It is the EOS at which the sequence may end: one that was generated, not given."""


StepResult = tuple[TokenOutput, ...] | Exception
"""What a step generated for one sequence; or why it failed, which is no fault of the others."""
Rounds = list[list[StepResult]]
"""Of each step, one after the other, the result of each sequence."""


@dataclass(frozen=True)
class StepOutput:
    """What one step drew for a batch: up to m tokens a row, in natural positions."""

    index: int
    """0 for the first step."""
    position: Int[Tensor, "b m"]
    """n, one past the last position, where a row has fewer tokens."""
    token: Int[Tensor, "b m"]
    logp: Float[Tensor, "b m"]
    """log p under the model, float64."""
    drawn: Bool[Tensor, "b m"]
    """False for padding and for tokens that were given."""
