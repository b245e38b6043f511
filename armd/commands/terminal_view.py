"""Showing text as it appears: blanks as dots, tokens coloured by the step that drew them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..runtime.standard_streams import BROKEN, printable

if TYPE_CHECKING:
    from rich.text import Text

BLANK = "·"
Decode = Callable[[list[int]], str]


def pieces(ids: Sequence[int | None], decode: Decode) -> list[str]:
    """What each token adds to the text; a dot for one not there yet. Where several tokens make one
    character, the last of them has it."""
    found: list[str] = []
    before: list[int] = []  # the tokens of the last whole piece, for decoders that join words
    pending: list[int] = []
    for token in ids:
        if token is None:
            found.append(BROKEN * bool(pending) + BLANK)
            before, pending = [], []
            continue
        pending.append(token)
        added = decode(before + pending)[len(decode(before)) :]
        if added.endswith(BROKEN) and len(pending) < 4:
            found.append("")
        else:
            found.append(added)
            before, pending = pending, []
    return found


def coloured(
    ids: Sequence[int], steps: Sequence[int | None], total: int, decode: Decode, known: list[bool]
) -> Text:
    """The text as it is now: known plain, drawn in the colour of its step, the rest dim dots."""
    from rich.text import Text

    there = [
        token if given or step is not None else None
        for token, step, given in zip(ids, steps, known, strict=True)
    ]
    text = Text()
    for piece, step, given in zip(pieces(there, decode), steps, known, strict=True):
        style = "bold" if given else "dim" if step is None else colour(step, total)
        text.append(printable(piece), style)
    return text


def colour(step: int, total: int) -> str:
    """From red, early, over green to violet, late, as rich names colours."""
    import colorsys

    red, green, blue = colorsys.hsv_to_rgb(0.8 * step / max(1, total - 1), 0.55, 0.95)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


@contextmanager
def live() -> Iterator[Callable[[Text], None] | None]:
    """Yields show(text), which redraws it in place, or None where there is no terminal."""
    if not sys.stdout.isatty():
        yield None
        return
    from rich.live import Live

    with Live(refresh_per_second=12, vertical_overflow="visible") as display:
        yield display.update
