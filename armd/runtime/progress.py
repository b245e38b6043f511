"""How far is it? A bar with rate and time left on a terminal, now and then a line elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 10.0


def rate(tokens: int, seconds: float) -> str:
    return f"{tokens / max(seconds, 1e-9) / 1e6:.2f} M tokens/s"


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[int, int], None]]:
    """Yields report(position, tokens): bytes of the source read, tokens written so far."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with bar(console, total) as report:
            yield report
    else:
        yield lines(console, total)


@contextmanager
def bar(console, total: int | None) -> Iterator[Callable[[int, int], None]]:
    from rich import progress as rich

    columns = (
        rich.TextColumn("preparing"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TextColumn("{task.fields[rate]}"),
        rich.TimeRemainingColumn(),
    )
    start = time.monotonic()
    with rich.Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=total, rate="")

        def report(position: int, tokens: int) -> None:
            speed = rate(tokens, time.monotonic() - start)
            display.update(task, completed=position, rate=speed)

        yield report


def lines(console, total: int | None) -> Callable[[int, int], None]:
    start = last = time.monotonic()

    def report(position: int, tokens: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        text = f"preparing: {tokens:,} tokens, {rate(tokens, now - start)}"
        if total and position:
            left = (now - start) * (total - position) / position
            text += f", {100 * position / total:.0f} %, {left:.0f} s left"
        console.print(text, highlight=False)

    return report
