"""What the server has done, as numbers for /metrics."""

import math
import os
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def resident_bytes() -> int:
    """What the process holds of the machine's memory; 0 where the system does not say."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * PAGE if status.exists() else 0


@dataclass
class Histogram:
    """Counts below bounds, as Prometheus wants them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        found, below = [], 0
        for bound, count in zip((*BOUNDS, "+Inf"), self.counts, strict=True):
            below += count
            found.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*found, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


@dataclass
class Metrics:
    """Counted by the engine's thread; answers, refusals, and those who leave the queue, by the
    event loop's. Reading them is harmless."""

    passes: int = 0
    rows: int = 0
    """Texts summed over passes."""
    tokens: int = 0
    done: int = 0
    failed: int = 0
    abandoned: int = 0
    refused: int = 0
    busy_seconds: float = 0.0
    wait: Histogram = field(default_factory=Histogram)
    whole: Histogram = field(default_factory=Histogram)
    answers: dict[tuple[str, int], int] = field(default_factory=dict)

    def passed(self, passes: int, rows: int, seconds: float) -> None:
        self.passes += passes
        self.rows += rows
        self.busy_seconds += seconds

    def first_token(self, seconds: float) -> None:
        self.wait.add(seconds)

    def finished(self, seconds: float, *, failed: bool) -> None:
        self.done += not failed
        self.failed += failed
        self.whole.add(seconds)

    def seconds_until_free(self, ahead: int, slots: int) -> int:
        """After how long it is worth trying again, where so many wait."""
        mean = self.whole.total / max(1, sum(self.whole.counts))
        return max(1, min(60, math.ceil(mean * (ahead + 1) / slots)))

    def answered(self, path: str, status: int) -> None:
        self.answers[path, status] = self.answers.get((path, status), 0) + 1

    def text(self, *, active: int, waiting: int, slots: int) -> str:
        """The Prometheus text format."""
        counters = {
            "passes": ("Passes of the model.", self.passes),
            "pass_texts": ("Texts in those passes.", self.rows),
            "tokens": ("Tokens drawn.", self.tokens),
            "texts_finished": ("Texts finished.", self.done),
            "texts_failed": ("Texts that failed.", self.failed),
            "texts_abandoned": ("Texts whose client went away.", self.abandoned),
            "refused": ("Requests refused because the queue was full.", self.refused),
            "busy_seconds": ("Seconds in passes and draws.", round(self.busy_seconds, 6)),
        }
        gauges = {
            "slots": ("Sequences that can be decoded together.", slots),
            "slots_taken": ("Sequences being decoded.", active),
            "places": ("Former name of armd_slots.", slots),
            "places_taken": ("Former name of armd_slots_taken.", active),
            "waiting": ("Texts in the queue.", waiting),
        }
        resident = "process_resident_memory_bytes"
        lines = [f"# HELP {resident} Memory held.", f"# TYPE {resident} gauge"]
        lines += [f"{resident} {resident_bytes()}"]
        for kind, table, end in (("counter", counters, "_total"), ("gauge", gauges, "")):
            for name, (help_text, value) in table.items():
                full = f"armd_{name}{end}"
                lines += [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}", f"{full} {value}"]
        lines += ["# HELP armd_answers_total Answers by path and status."]
        lines += ["# TYPE armd_answers_total counter"]
        for (path, status), count in sorted(self.answers.items()):
            lines.append(f'armd_answers_total{{path="{path}",status="{status}"}} {count}')
        for name, help_text, histogram in (
            ("armd_first_token_seconds", "From arrival to the first tokens.", self.wait),
            ("armd_text_seconds", "From arrival to the end of a text.", self.whole),
        ):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} histogram"]
            lines += histogram.lines(name)
        return "\n".join(lines) + "\n"
