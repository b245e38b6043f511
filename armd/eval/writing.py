"""Samples from a model, each from its own seed, and the temperature that gives them an entropy."""

from __future__ import annotations

from typing import Any

from ..errors import ArmdError
from .models import Loaded
from .perplexity import generator
from .samples import Samples
from .text_figures import text_figures

HALVINGS = 8


def write_samples(
    writer: Loaded,
    *,
    count: int,
    length: int | None,
    streams: int,
    temperature: float,
    match_entropy: float | None,
    seed: int,
    batch: int,
) -> Samples:
    """`count` samples of `length` tokens."""
    if writer.kind != "armd":
        raise ArmdError(f"{writer.name} is no ARMD model; give a file of its samples instead")
    most = writer.model.config.max_length
    length = min(1024, most) if length is None else length
    if length > most:
        raise ArmdError(f"--length {length} passes the model's {most} tokens")

    def written(at: float) -> list[list[int]]:
        return draw(writer, count, length, streams=streams, temperature=at, seed=seed, batch=batch)

    if match_entropy is None:
        ids = written(temperature)
    else:
        temperature, ids = match(written, match_entropy)
    backend = writer.tokenizer.backend
    facts: dict[str, Any] = {
        "model": writer.name,
        "weights": writer.fingerprint,
        "streams": streams,
        "length": length,
        "temperature": temperature,
        "seed": seed,
        "sampling_precision": "float64",
    }
    texts = backend.decode_batch(ids, skip_special_tokens=False)
    return Samples(texts, ids, backend.get_vocab(), facts)


def draw(
    writer: Loaded,
    count: int,
    length: int,
    *,
    streams: int,
    temperature: float,
    seed: int,
    batch: int,
) -> list[list[int]]:
    from ..generation import generate

    found: list[list[int]] = []
    for start in range(0, count, batch):
        part = range(start, min(start + batch, count))
        ids = generate(
            writer.model,
            length=length,
            prompt=[[] for _ in part],
            streams=streams,
            temperature=temperature,
            generator=[generator(seed, number) for number in part],
        )
        found += ids.tolist()
    return found


def match(written: Any, bits: float) -> tuple[float, list[list[int]]]:
    """The temperature between 0.5 and 2 whose samples have an entropy of `bits`, by halving."""
    low, high = 0.5, 2.0
    tried = []
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        ids = written(middle)
        found = text_figures(ids)["entropy_bits"]
        tried.append((abs(found - bits), middle, ids))
        low, high = (middle, high) if found < bits else (low, middle)
    error, temperature, ids = min(tried, key=lambda trial: trial[0])
    if error > 0.1:
        raise ArmdError(
            f"no temperature between 0.5 and 2 gives an entropy of {bits} bits "
            f"(nearest: {temperature:.3f}, off by {error:.2f}); is that below log2 of the length?"
        )
    return round(temperature, 6), ids
