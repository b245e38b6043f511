"""What the engine tells about a text: tokens drawn, its end, or its failure."""

import time
from dataclasses import dataclass, field
from typing import Literal

from ..filling import Step
from ..shapes import Float, Tensor


@dataclass(frozen=True)
class Rival:
    """A token that could have been drawn."""

    token: int
    logp: float


@dataclass(frozen=True)
class Landed:
    """One token in its place."""

    position: int
    token: int
    logp: float
    rivals: tuple[Rival, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """What one pass drew for a text."""

    step: int
    at: tuple[Landed, ...]
    when: float = field(default_factory=time.perf_counter)


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


Event = Drawn | Ended | Failed


def drawn(step: Step, logits: Float[Tensor, "1 k v"], rivals: int, n: int) -> Drawn:
    """A step of one text, in plain numbers, with the most probable tokens beside each."""
    others = [()] * step.token.shape[1]
    if rivals:
        logp = logits[0].double().log_softmax(-1)
        best = logp.topk(min(rivals, logp.shape[1]), -1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        others = [tuple(map(Rival, tokens, values)) for tokens, values in pairs]
    columns = (step.position[0], step.token[0], step.logp[0], step.drawn[0])
    rows = zip(*(column.tolist() for column in columns), others, strict=True)
    return Drawn(step.index, tuple(Landed(p, t, lp, o) for p, t, lp, real, o in rows if real))
