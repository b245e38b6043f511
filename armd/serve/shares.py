"""Fair sharing of the engine's time. Three schedulers, each for one pair of competitors:

- ScoreBudget: scoring against decoding, by time. Many or long texts to be scored must not slow down
  running generations more than few do.
- PrefillBudget: prefill against decoding, by time.
- ClientShares: clients against each other, by decode steps. A client that sends its next request
  sooner must not get more steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .requests import GenerationRequest, ScheduledRequest

DECODE_PER_SCORE = 4.0
"""Seconds of decoding for each second of scoring, while there is work of both kinds."""

CLIENT_GAP = 0.02
"""Seconds after a decode step in which the next requests of the same clients are still expected.
Clients whose texts end in the same step leave nothing to decode for a moment; that moment must not
be given to scoring."""


class ScoreBudget:
    def __init__(self) -> None:
        self.debt = 0.0
        """Seconds of decoding that come before more is scored."""
        self.last_step = -math.inf

    def scored(self, seconds: float, decoding: bool) -> None:
        """Scoring took this long. `decoding`: there are sequences to decode. If there are none now
        and were none when scoring began, the debt is zero: no request was delayed by it."""
        recent = time.monotonic() - self.last_step < seconds + CLIENT_GAP
        both = decoding or recent
        self.debt = max(self.debt, 0.0) + DECODE_PER_SCORE * seconds if both else 0.0

    def decoded(self, seconds: float) -> None:
        self.debt -= seconds
        self.last_step = time.monotonic()

    def pause(self) -> float:
        """Seconds for which scoring waits for new requests to decode."""
        left = self.last_step + CLIENT_GAP - time.monotonic()
        return max(0.0, left) if self.debt > 0 else 0.0


DECODE_PER_PREFILL = 1.0
"""Seconds of decoding alone for each second by which prefill made a step longer."""
NOTICEABLE = 0.01
"""Seconds. A step that prefill made longer by less than this creates no debt: other processes on
the machine delay steps by as much."""


class PrefillBudget:
    """Where sequences are being decoded, a chunk of prefill is followed by decode steps alone, for
    about as long as the chunk delayed them: running generations keep half of their speed or more.
    Where a chunk is short, or nothing is being decoded, prefill does not wait."""

    def __init__(self) -> None:
        self.debt = 0.0
        """Seconds of decode steps without prefill that come before the next chunk."""
        self.plain_step = 0.0
        """Seconds of the last step without prefill."""

    def allowed(self, present: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """The requests of the next step: without those in prefill while there is a debt."""
        if self.debt <= 0:
            return present
        decoding = [entry for entry in present if entry.sequence and entry.sequence.step]
        return decoding or present

    def took(self, steps_before: Sequence[int], passes: int, seconds: float) -> None:
        """So many passes took `seconds` together. `steps_before`: the decode steps of each sequence
        before them, 0 for one in prefill."""
        if all(steps_before):
            self.debt -= seconds
            self.plain_step = seconds / passes
        elif any(steps_before):
            delay = seconds - passes * self.plain_step
            self.debt = DECODE_PER_PREFILL * delay if delay >= NOTICEABLE else 0.0


MAX_LEAD, MAX_CREDIT = 16, 64
"""Steps. A client more than MAX_LEAD steps ahead of another pauses until they are level. One that
returns within CLIENT_GAP may be at most MAX_CREDIT steps behind; one that was away longer has no
credit, else a client that uses many connections in turn would collect credit on each."""
SHORT_STEP = 0.001
"""Seconds. Clients pause only where steps are shorter: in a longer one a row more costs the others
little, and a pause costs much."""
EXPENSIVE_STEP = 2.0
"""What a step with a repetition penalty or log-probabilities counts, because it makes the step
longer for all clients."""
MAX_CLIENTS = 1024
"""Clients that are remembered."""


def is_expensive(request: GenerationRequest) -> bool:
    return bool(request.top_logprobs) or request.sampling.repetition_penalty != 1


class ClientShares:
    """Decode steps of each client. A client that runs alone for a moment, because the others are
    sending their next requests, gets ahead; it pauses when they are back. Several sequences of a
    client advance in the same step, which counts once."""

    def __init__(self) -> None:
        self.steps: dict[object, float] = {}
        self.seen: dict[object, float] = {}
        """When each client last had a running request; the newest last."""
        self.paused: set[object] = set()
        self.seconds = 0.0
        """Of the last step."""

    def present(self, active: Sequence[ScheduledRequest], now: float) -> Sequence[ScheduledRequest]:
        """The requests of the next step. The client with the fewest steps is always among them."""
        clients = {entry.client for entry in active}
        self._see(clients, now)
        if len(clients) < 2:
            self.paused.clear()
            return active
        steps = self.steps
        floor = max(steps[client] for client in clients) - MAX_CREDIT
        for client in clients:
            steps[client] = max(steps[client], floor)
        least = min(steps[client] for client in clients)
        for client in clients:
            lead = steps[client] - least
            if lead > MAX_LEAD and self.seconds < SHORT_STEP:
                self.paused.add(client)
            elif lead <= 0 or self.seconds >= SHORT_STEP:
                self.paused.discard(client)
        self.paused &= clients
        return [entry for entry in active if entry.client not in self.paused]

    def _see(self, clients: set[object], now: float) -> None:
        """A client that is new, or was away for long, starts level with the least served one."""
        here = {client for client in clients if now - self.seen.get(client, -math.inf) < CLIENT_GAP}
        least = min((self.steps[client] for client in here), default=0.0)
        for client in clients:
            if client not in here:
                self.steps[client] = least
            self.seen.pop(client, None)
            self.seen[client] = now
        while len(self.seen) > max(MAX_CLIENTS, len(clients)):
            oldest = next(iter(self.seen))
            del self.seen[oldest], self.steps[oldest]

    def took(self, entries: Sequence[ScheduledRequest], steps: int, seconds: float) -> None:
        """These requests took part in so many steps, of so many seconds each."""
        self.seconds = seconds
        costs: dict[object, float] = {}
        for entry in entries:
            cost = EXPENSIVE_STEP if is_expensive(entry.request) else 1.0
            costs[entry.client] = max(cost, costs.get(entry.client, 0.0))
        for client, cost in costs.items():
            self.steps[client] += cost * steps
