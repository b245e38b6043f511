"""What the engine tells about a text: tokens drawn, its end, or its failure."""

import time
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class TopLogprob(NamedTuple):
    """A token that could have been drawn."""

    token: int
    logp: float


class TokenOutput(NamedTuple):
    """One token in its slot."""

    position: int
    token: int
    logp: float
    rivals: tuple[TopLogprob, ...] = ()


class StepEvent(NamedTuple):
    """What one pass drew for a text."""

    step: int
    at: tuple[TokenOutput, ...]
    when: float


@dataclass(frozen=True)
class Ended:
    """The text is finished: full, at its EOS, or cut short by time or by the server's end."""

    reason: Literal["length", "stop"]
    cut: str | None = None
    when: float = field(default_factory=time.perf_counter, compare=False)


@dataclass(frozen=True)
class Failed:
    """Something went wrong that is no fault of the client."""

    message: str


Event = StepEvent | Ended | Failed
