"""Who is next. Texts being written or those to be scored: by time, so that many or long texts to be
scored take no more from the others than few. Texts being written or prompts being read: by time,
too. Of clients whose texts are being written: by steps, so that one whose texts follow each other
more quickly has no more of them."""

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

    def scored(self, seconds: float, wanted: bool) -> None:
        """So many seconds were spent. `wanted`: there are texts to be written. Where there are
        none, and were none when it began, nothing is owed to anybody, now or later."""
        recent = time.monotonic() - self.last_pass < seconds + TURNAROUND
        both = wanted or recent
        self.owed = max(self.owed, 0.0) + PASSES_SHARE * seconds if both else 0.0

    def passed(self, seconds: float) -> None:
        self.owed -= seconds
        self.last_pass = time.monotonic()

    def pause(self) -> float:
        """Seconds for which scoring waits for texts to be written."""
        left = self.last_pass + TURNAROUND - time.monotonic()
        return max(0.0, left) if self.owed > 0 else 0.0


AHEAD, CREDIT = 16, 64
"""Steps: so many ahead of another, a client rests until it no longer is; as many as CREDIT are kept
for one who comes back within TURNAROUND. Who stays away longer missed nothing: else connections
used in turn would each have a credit, and the others would rest for all of them."""
QUICK = 0.001
"""Seconds of a pass. In longer ones a row more costs the others little, and a pause much."""
DEARER = 1.5
"""What a step of a text with a penalty or log-probabilities counts: its client, not those beside
it, pays for what makes their passes longer."""
MOST_CLIENTS = 1024
"""That are remembered."""

READING_SHARE = 1.0
"""Seconds of passes without prompts for each second that prompts made a pass longer."""
LONGER = 0.01
"""Seconds by which they do. Fewer nobody notices: the machine makes passes wait as long."""


class Reading:
    """Time for prompts. Where texts are being written, a part of a prompt is followed by passes for
    those texts alone, about as long as it kept them waiting: they have half of their speed or
    more. Where a part is short, or nobody writes, prompts wait for nothing."""

    def __init__(self) -> None:
        self.owed = 0.0
        """Seconds of passes without prompts that come before more is read."""
        self.usual = 0.0
        """Seconds of the last pass without prompts."""

    def allowed(self, present: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """Those of a pass without the ones that are to wait with their prompts."""
        if self.owed <= 0:
            return present
        writing = [entry for entry in present if entry.sequence and entry.sequence.step]
        return writing or present

    def took(self, firsts: Sequence[int], passes: int, seconds: float) -> None:
        """So many passes, of so many seconds together; before them each text had taken so many
        steps: none where its prompt was being read."""
        if all(firsts):
            self.owed -= seconds
            self.usual = seconds / passes
        elif any(firsts):
            longer = seconds - passes * self.usual
            self.owed = READING_SHARE * longer if longer >= LONGER else 0.0


def is_dearer(request: GenerationRequest) -> bool:
    return bool(request.top_logprobs) or request.sampling.repetition_penalty != 1


class Turns:
    """The steps that each client took part in. A client with texts of its own to itself for a
    moment, because others ask for their next ones, gets ahead, and lets them have passes without
    it when they are back. Several texts of a client advance in the same step."""

    def __init__(self) -> None:
        self.steps: dict[object, float] = {}
        self.seen: dict[object, float] = {}
        """When each last had a text under way; the newest come last."""
        self.resting: set[object] = set()
        self.seconds = 0.0
        """Of the last pass."""

    def present(self, active: Sequence[ScheduledRequest], now: float) -> Sequence[ScheduledRequest]:
        """Those that take part in the next pass: always those of the client with the fewest."""
        clients = {entry.client for entry in active}
        self._see(clients, now)
        if len(clients) < 2:
            self.resting.clear()
            return active
        steps = self.steps
        floor = max(steps[client] for client in clients) - CREDIT
        for client in clients:
            steps[client] = max(steps[client], floor)
        least = min(steps[client] for client in clients)
        for client in clients:
            ahead = steps[client] - least
            if ahead > AHEAD and self.seconds < QUICK:
                self.resting.add(client)
            elif ahead <= 0 or self.seconds >= QUICK:
                self.resting.discard(client)
        self.resting &= clients
        return [entry for entry in active if entry.client not in self.resting]

    def _see(self, clients: set[object], now: float) -> None:
        """Who is new, or was away for long, begins with the fewest steps of those who were not."""
        here = {client for client in clients if now - self.seen.get(client, -math.inf) < TURNAROUND}
        least = min((self.steps[client] for client in here), default=0.0)
        for client in clients:
            if client not in here:
                self.steps[client] = least
            self.seen.pop(client, None)
            self.seen[client] = now
        while len(self.seen) > max(MOST_CLIENTS, len(clients)):
            oldest = next(iter(self.seen))
            del self.seen[oldest], self.steps[oldest]

    def took(self, entries: Sequence[ScheduledRequest], steps: int, seconds: float) -> None:
        """So many passes, of so many seconds each."""
        self.seconds = seconds
        costs: dict[object, float] = {}
        for entry in entries:
            cost = DEARER if is_dearer(entry.request) else 1.0
            costs[entry.client] = max(cost, costs.get(entry.client, 0.0))
        for client, cost in costs.items():
            self.steps[client] += cost * steps
