"""What a person sees while a run goes on: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from math import exp
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class StepReport:
    """One step, as reported."""

    step: int
    loss: float
    stage: str
    learning_rate: float
    grad_norm: float
    tokens_per_second: float


def duration(seconds: float) -> str:
    """As 45 s, 4:05 min, 3:20 h or 2.5 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    if seconds < 48 * 3600:
        return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d} h"
    return f"{seconds / 86400:.1f} days"


def sparkline(values: list[float], width: int = 60) -> str:
    """The course of a curve in one line of text."""
    values = values[:: max(1, len(values) // width)][-width:]
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low or 1.0)
    return "".join(_BARS[int((value - low) * scale)] for value in values)


class ProgressView:
    """Prints a run's progress. Silent on all processes but the first."""

    def __init__(self, name: str, *, start: int, total: int, shown: bool) -> None:
        self.name, self.start, self.total, self.shown = name, start, total, shown
        self.began = time.monotonic()
        self.losses: list[float] = []
        self.heldout: dict[str, float] = {}
        self.unheard = False
        self.live: Live | None = None
        if shown and sys.stdout.isatty():
            self.live = Live(console=Console(), refresh_per_second=4)
            self.live.start()

    def left(self, step: int) -> float:
        spent = time.monotonic() - self.began
        return spent / max(1, step - self.start) * (self.total - step)

    def report(self, now: StepReport) -> None:
        if not self.shown:
            return
        self.losses.append(now.loss)
        if self.live is not None:
            self.live.update(self._panel(now))
            return
        self._print(
            f"step {now.step}/{self.total}  loss {now.loss:.4f}  ppl {perplexity(now.loss):.1f}  "
            f"{now.stage}  grad {now.grad_norm:.2f}  lr {now.learning_rate:.2e}  "
            f"{now.tokens_per_second:,.0f} tokens/s  {duration(self.left(now.step))} left"
        )

    def validated(self, step: int, heldout: dict[str, float]) -> None:
        self.heldout = heldout
        if self.shown and self.live is None:
            self.say(f"step {step}  held-out perplexity: {perplexities(heldout)}")

    def say(self, text: str) -> None:
        if not self.shown:
            return
        if self.live is not None:
            self.live.console.print(text)
        else:
            self._print(text)

    def _print(self, text: str) -> None:
        """A line. Where standard output takes none, as on a full disk, the run goes on without:
        its figures are in a file of their own. A reader that has left ends it."""
        try:
            print(text, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self.unheard:
                self.unheard = True
                what = f"cannot write to standard output ({error.strerror})"
                warnings.warn(f"{what}; the run goes on, see its metrics.jsonl", stacklevel=2)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()

    def _panel(self, now: StepReport) -> Panel:
        table = Table.grid(padding=(0, 2))
        cells: list[tuple[str, Any]] = [
            ("loss", f"{now.loss:.4f}"),
            ("perplexity", f"{perplexity(now.loss):.1f}"),
            ("order", now.stage),
            ("tokens/s", f"{now.tokens_per_second:,.0f}"),
            ("gradient", f"{now.grad_norm:.2f}"),
            ("rate", f"{now.learning_rate:.2e}"),
            ("time left", duration(self.left(now.step))),
        ]
        table.add_row(*(Text(name, style="dim") for name, _ in cells))
        table.add_row(*(Text(value, style="bold") for _, value in cells))
        parts: list[Any] = [
            Padding(ProgressBar(total=self.total, completed=now.step)),  # which ends its line
            table,
            Text(sparkline(self.losses), style="cyan"),
        ]
        if self.heldout:
            parts.append(Text(f"held-out perplexity: {perplexities(self.heldout)}"))
        return Panel(Group(*parts), title=f"{self.name}: step {now.step} of {self.total}")


def perplexities(heldout: dict[str, float]) -> str:
    return "  ".join(f"{name} {perplexity(loss):.1f}" for name, loss in heldout.items())


def perplexity(loss: float) -> float:
    return exp(min(loss, 80.0))
