"""Requests to the engine, the errors it refuses them with, and which request starts next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ..generation.kv_cache import KVCache
    from ..generation.plan import DecodePlan
    from ..generation.sequence import Sequence
    from ..model.sampling import Sampling
    from .events import Callback
    from .prefill import SharedPrompt


class QueueFull(Exception):
    """The queue is full; worth another try after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


class ShuttingDown(Exception):
    """The server accepts no new requests."""

    def __init__(self, *, failed: bool = False) -> None:
        why = "the server's engine has failed, its log says how; start the server again"
        super().__init__(why if failed else "the server is shutting down")
        self.code = "failed" if failed else "stopping"


@dataclass(frozen=True)
class GenerationRequest:
    """One sequence to be generated, and the callback that gets its tokens."""

    plan: DecodePlan
    sampling: Sampling
    generator: torch.Generator
    callback: Callback
    eos: int | None = None
    top_logprobs: int = 0
    """How many of the most probable tokens to report with each token."""
    deadline: float = math.inf
    """time.monotonic() after which it returns its partial text."""
    prompt: SharedPrompt | None = None
    """Its prompt, if other sequences of the request have the same."""


@dataclass(eq=False)
class ScheduledRequest:
    """A request that waits or has a slot."""

    request: GenerationRequest
    arrived: float
    together: object
    """The same for all sequences of one request."""
    client: object
    """The same for all requests of one connection."""
    sequence: Sequence | None = None
    cache: KVCache | None = None
    """Its slot's."""
    cancelled: bool = False
    """No more events are wanted: the client has left, or the text is complete."""
    complete: bool = False
    """Cancelled because its text came to a stop string."""


def next_of(
    waiting: Iterable[ScheduledRequest], active: Collection[ScheduledRequest], slots: int
) -> ScheduledRequest | None:
    """The waiting sequence that starts now: the oldest of the request with the fewest slots, so
    that a request of many sequences does not block the others. Where all slots are taken and one
    request has several, the spare slot is for a request that has none."""
    taken = Counter(id(entry.together) for entry in active)
    full = len(active) >= slots
    if full and (len(active) > slots or max(taken.values()) == 1):
        return None
    first = min(waiting, key=lambda entry: taken[id(entry.together)], default=None)
    return None if full and first and taken[id(first.together)] else first
