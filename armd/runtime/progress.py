"""How far is it? A bar with the time left on a terminal; elsewhere nothing, or now and then a
line."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 10.0
Report = Callable[[int, str], None]


def rate(tokens: int, seconds: float) -> str:
    return f"{tokens / max(seconds, 1e-9):,.0f} tokens/s"


@contextmanager
def progress(
    what: str, total: int | None = None, *, shown: bool = True, lines: bool = False
) -> Iterator[Report]:
    """Yields report(done, state): how many of `total` are done, and a few words. `lines`: without a
    terminal a line every ten seconds."""
    from rich.console import Console

    console = Console(stderr=True)
    if shown and console.is_terminal:
        with bar(console, what, total) as report:
            yield report
    elif shown and lines:
        yield line_writer(console, what, total)
    else:
        yield lambda done, state: None


@contextmanager
def bar(console, what: str, total: int | None) -> Iterator[Report]:
    from rich import progress as rich

    known = (rich.BarColumn(), rich.TaskProgressColumn())
    columns = (
        rich.TextColumn(what),
        *(known if total else [rich.SpinnerColumn()]),
        rich.TextColumn("{task.fields[state]}"),
        rich.TimeRemainingColumn() if total else rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=total, state="")
        yield lambda done, state: display.update(task, completed=done, state=state)


def line_writer(console, what: str, total: int | None) -> Report:
    start = last = time.monotonic()

    def report(done: int, state: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        text = f"{what}: {state}"
        if total and done:
            left = (now - start) * (total - done) / done
            text += f", {100 * done / total:.0f} %, {left:.0f} s left"
        console.print(text, highlight=False)

    return report
