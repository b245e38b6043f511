"""Who is next. Texts being written or those to be scored: by time, so that many or long texts to be
scored take no more from the others than few. Of clients whose texts are being written: by steps, so
that one whose texts follow each other more quickly has no more of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .requests import GenerationRequest, ScheduledRequest

PASSES_SHARE = 4.0
"""Seconds of passes for each second of scoring, while there is work of both kinds."""

TURNAROUND = 0.02
"""Seconds after a pass in which the next texts of those who were served are still expected. Clients
that end together leave no text to write for a moment, which must not be a turn of scoring."""


class Shares:
    def __init__(self) -> None:
        self.owed = 0.0
        """Seconds of passes that come before more is scored."""
        self.last_pass = -math.inf

    def scored(self, seconds: float) -> None:
        self.owed = max(self.owed, 0.0) + PASSES_SHARE * seconds

    def passed(self, seconds: float) -> None:
        self.owed -= seconds
        self.last_pass = time.monotonic()

    def pause(self) -> float:
        """Seconds for which scoring waits for texts to be written."""
        left = self.last_pass + TURNAROUND - time.monotonic()
        return max(0.0, left) if self.owed > 0 else 0.0


AHEAD, CREDIT = 16, 64
"""Steps: so many ahead of another, a client rests until it no longer is; as many as CREDIT are kept
for one who comes back."""
QUICK = 0.001
"""Seconds of a pass. In longer ones a row more costs the others little, and a pause much."""
DEARER = 1.5
"""What a step of a text with a penalty or log-probabilities counts: its client, not those beside
it, pays for what makes their passes longer."""
MOST_CLIENTS = 1024
"""That are remembered."""


def is_dearer(request: GenerationRequest) -> bool:
    return bool(request.top_logprobs) or request.sampling.repetition_penalty != 1


class Turns:
    """The steps that each client took part in. A client with texts of its own to itself for a
    moment, because others ask for their next ones, gets ahead, and lets them have passes without
    it when they are back. Several texts of a client advance in the same step."""

    def __init__(self) -> None:
        self.steps: dict[object, float] = {}
        self.resting: set[object] = set()
        self.seconds = 0.0
        """Of the last pass."""

    def present(self, active: Sequence[ScheduledRequest]) -> list[ScheduledRequest]:
        """Those that take part in the next pass: always those of the client with the fewest."""
        clients = {entry.client for entry in active}
        if len(clients) < 2:
            self.resting.clear()
            return list(active)
        steps = self.steps
        known = [steps[client] for client in clients if client in steps]
        # who comes back may have far fewer than those who stayed
        floor = max(known, default=0.0) - CREDIT
        least = max(min(known, default=0.0), floor)
        for client in clients:
            steps[client] = max(steps.get(client, least), floor)
        least = min(steps[client] for client in clients)
        for client in clients:
            ahead = steps[client] - least
            if ahead > AHEAD and self.seconds < QUICK:
                self.resting.add(client)
            elif ahead <= 0 or self.seconds >= QUICK:
                self.resting.discard(client)
        self.resting &= clients
        return [entry for entry in active if entry.client not in self.resting]

    def took(self, entries: Sequence[ScheduledRequest], steps: int, seconds: float) -> None:
        """So many passes, of so many seconds each."""
        self.seconds = seconds
        costs: dict[object, float] = {}
        for entry in entries:
            cost = DEARER if is_dearer(entry.request) else 1.0
            costs[entry.client] = max(cost, costs.get(entry.client, 0.0))
        for client, cost in costs.items():
            self.steps[client] = self.steps.pop(client, 0.0) + cost * steps  # the newest come last
        while len(self.steps) > MOST_CLIENTS:
            del self.steps[next(iter(self.steps))]
