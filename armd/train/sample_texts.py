"""Texts that a model in training writes, for a person to read."""

from typing import Any

import torch

from ..baselines import name_of
from ..baselines.base import Baseline
from ..data.dataset import Dataset
from ..model.eval_mode import without_dropout
from ..runtime.seeds import seed_of


def sample_texts(
    model: Any, dataset: Dataset, *, seed: int, step: int, streams: tuple[int, ...] = (1, 4)
) -> str:
    """One text for each number of streams, always drawn with the same seed; one alone from models
    that know no streams."""
    import armd

    tokenizer, texts, length = dataset.tokenizer(), [], model.config.max_length
    with without_dropout(model), torch.random.fork_rng([]):
        for count in streams if name_of(model.config) in ("armd", "xlnet") else (1,):
            generator = torch.Generator().manual_seed(seed_of(seed, "sample", count))
            if isinstance(model, Baseline):
                sample = model.sample(batch=1, length=length, steps=length, generator=generator)
                ids = sample.tokens
            else:
                ids = armd.generate(model, length=length, streams=count, generator=generator)
            texts.append(f"--- step {step}, S={count}\n{tokenizer.decode(ids[0].tolist())}\n")
    return "\n".join(texts)
