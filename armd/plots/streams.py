"""A picture of streams: which token of a text is written at which model call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from .orders import (
    INK,
    MASKED,
    _ticks,
    cells,
    check_length,
    colour_of,
    frame,
    pyplot_or_error,
    save,
)

if TYPE_CHECKING:
    from ..commands.generate import Written

GIVEN = "#d3d7de"


def plot_streams(
    model: tyro.conf.Positional[str],
    /,
    *,
    out: Path,
    prompt: str | None = None,
    template: str | None = None,
    blank_lengths: str = "",
    length: int = 24,
    streams: int | None = None,
    order: str = "left-to-right",
    temperature: float = 1.0,
    seed: int = 0,
) -> None:
    """Write a text and draw which token is written when: a row for each model call.

    Args:
        model: A training run, or a folder of save_pretrained with its tokenizer.
        out: Where to write the picture, as FILE.png (or .svg, .pdf).
        prompt: The text to continue.
        template: A text with blanks of underscores, instead of a prompt.
        blank_lengths: Tokens of its blanks, as 4 or 3,5.
        length: Tokens of the text, prompt included.
        streams: Runs written side by side; 4 left to right, else tokens a call: 1.
        order: left-to-right, random or masking:T.
        temperature: Of the sampling.
        seed: Of the sampling.
    """
    from ..commands.generate import write
    from ..commands.generate_options import Writing, opened, requested, sampling_of

    check_length(length, 256)
    pyplot = pyplot_or_error()
    several = 4 if order in ("left-to-right", "left_to_right") else 1
    job = Writing(
        model,
        prompt=prompt,
        template=template,
        blank_lengths=blank_lengths,
        length=None if template else length,
        streams=several if streams is None else streams,
        order=order,
        temperature=temperature,
        seed=seed,
        stop=False,
    )
    sampling = sampling_of(job)
    writer, tokenizer, _ = opened(job)
    (text,), calls = write(job, writer, tokenizer, sampling, requested(job, writer, tokenizer))

    def decode(ids: list[int]) -> str:
        return tokenizer.backend.decode(ids, skip_special_tokens=False)

    figure = draw_landing(text, calls, decode)
    save(figure, out)
    pyplot.close(figure)


def draw_landing(text: Written, calls: int, decode: Any) -> Any:
    """Row t: the text after t calls; what is given is grey, each token has its call's colour."""
    from ..commands.terminal_view import pieces

    n, words = len(text.ids), pieces(text.ids, decode)
    figure = pyplot_or_error().figure(
        figsize=(max(6.0, 0.62 * n), max(2.4, 0.42 * (calls + 2))), layout="constrained"
    )
    axes = figure.subplots()
    drawn = [GIVEN if step is None else colour_of(step, calls) for step in text.steps]
    first = [0 if step is None else step + 1 for step in text.steps]
    pairs = list(zip(drawn, first, strict=True))
    cells(axes, [[c if row >= at else MASKED for c, at in pairs] for row in range(calls + 1)])
    for row in range(calls + 1):
        for j, step in enumerate(text.steps):
            if (step is None and row == 0) or step == row - 1 or row == calls:
                _word(axes, j, row, words[j])
    frame(axes, n, calls + 1, f"{n} tokens, {calls} model calls: each colour is one call")
    axes.set_xlabel("position in the text")
    axes.set_ylabel("model calls made")
    _ticks(axes, n, calls + 1)
    return figure


def _word(axes: Any, x: float, y: float, word: str) -> None:
    shown = word.replace("\n", "↵").replace("$", r"\$").strip(" ")
    size = 8.5 if len(shown) <= 5 else 7 if len(shown) <= 8 else 5
    where = {"ha": "center", "va": "center", "clip_on": True}
    axes.text(x + 0.5, y + 0.5, shown, fontsize=size, color=INK, **where)
