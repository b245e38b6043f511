"""Texts that a model in training writes, for a person to read."""

from typing import Any

import torch

from .curriculum import seed_of
from .data.dataset import Dataset


def sample_texts(
    model: Any, dataset: Dataset, *, seed: int, step: int, streams: tuple[int, ...] = (1, 4)
) -> str:
    """One text for each number of streams, always drawn with the same seed."""
    import armd

    was_training, tokenizer = model.training, dataset.tokenizer()
    model.eval()
    texts = []
    with torch.random.fork_rng([]):
        for count in () if model.config.query == "shift" else streams:
            generator = torch.Generator().manual_seed(seed_of(seed, "sample", count))
            drawn = armd.generate(
                model, length=model.config.max_length, streams=count, generator=generator
            )
            texts.append(f"--- step {step}, S={count}\n{tokenizer.decode(drawn[0].tolist())}\n")
    model.train(was_training)
    return "\n".join(texts)
