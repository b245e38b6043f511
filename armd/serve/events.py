"""What the engine reports about a request: tokens generated, its end, or its failure."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..generation.outputs import TokenOutput


class StepEvent(NamedTuple):
    """What one step generated."""

    step: int
    tokens: tuple[TokenOutput, ...]
    when: float


@dataclass(frozen=True)
class Ended:
    """The sequence is finished: full, at its EOS, or cut short by time or by a shutdown."""

    reason: Literal["length", "stop"]
    cut: str | None = None
    when: float = field(default_factory=time.perf_counter, compare=False)


@dataclass(frozen=True)
class Failed:
    """Something went wrong that is no fault of the client."""

    message: str

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Logged where it is caught: the client is not told where in the server it happened."""
        logging.getLogger("uvicorn.error").error("a text failed", exc_info=error)
        return cls(repr(error))


Event = StepEvent | Ended | Failed
Callback = Callable[[Event], None]
