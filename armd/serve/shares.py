"""Who is next, the texts being written or those to be scored: by time, so that many or long texts
to be scored take no more from the others than few."""

import math
import time

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
