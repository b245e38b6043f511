"""Samples from a model, each from its own seed, and the temperature that gives them an entropy."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..errors import ArmdError
from ..runtime.seeds import seeded
from .entropy import search_temperature
from .load_model import Loaded
from .sample_files import Samples


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

    @cache
    def written(at: float) -> list[list[int]]:
        return draw(writer, count, length, streams=streams, temperature=at, seed=seed, batch=batch)

    if match_entropy is not None:
        temperature = search_temperature(written, match_entropy)
    ids = written(temperature)
    backend = writer.tokenizer.backend
    facts: dict[str, Any] = {
        "model": writer.name,
        "weights": writer.fingerprint,
        "config": writer.config,
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
    from ..generation.api import generate

    found: list[list[int]] = []
    for start in range(0, count, batch):
        part = range(start, min(start + batch, count))
        ids = generate(
            writer.model,
            length=length,
            prompt=[[] for _ in part],
            streams=streams,
            temperature=temperature,
            generator=[seeded(seed, number) for number in part],
        )
        found += ids.tolist()
    return found
