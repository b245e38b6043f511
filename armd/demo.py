"""`armd demo`: from a corpus to a model in minutes on two cores, out of the public pieces."""

import json as json_format
from dataclasses import replace
from pathlib import Path


def demo(*, folder: Path = Path("runs/demo"), json: Path | None = None) -> None:
    """Prepare State of the Union addresses, train a small model, print how well it reads. What an
    earlier call has done is not done again.

    Args:
        folder: Where the dataset and the run go.
        json: Write the held-out losses, in nats per token, to this file.
    """
    from .data.prepare import Preparation, prepare
    from .presets import demo as recipe
    from .run import read_metrics
    from .train import train

    data = folder / "data"
    prepare(Preparation("sotu", tokenizer="bpe:4096", out=data))
    run = train(replace(recipe(), data=str(data), out=str(folder / "run")))
    losses = [row["heldout"] for row in read_metrics(run) if "heldout" in row][-1]
    print(table(losses))
    if json:
        json.write_text(json_format.dumps(losses, indent=2) + "\n")


def table(losses: dict[str, float]) -> str:
    """Held-out losses, one order a line."""
    from .live import perplexity

    rows = [f"  {name:<15}{perplexity(loss):8.1f}   {loss:.3f}" for name, loss in losses.items()]
    return "held-out          perplexity   nats per token\n" + "\n".join(rows)
