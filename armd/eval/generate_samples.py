"""Samples from a model or a baseline, and the temperature that gives them an entropy."""

from __future__ import annotations

import time
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
    steps: int | None,
    temperature: float,
    match_entropy: float | None,
    seed: int,
    batch: int,
) -> Samples:
    """`count` samples of `length` tokens."""
    check_writer(writer, streams, steps)
    most = writer.model.config.max_length
    length = min(1024, most) if length is None else length
    if length > most:
        raise ArmdError(f"--length {length} passes the model's {most} tokens")

    options: dict[str, Any] = {"seed": seed, "batch": batch}
    how: dict[str, Any] = {"streams": streams}
    if writer.kind == "armd-baseline":
        how = {"steps": steps or length}

    @cache
    def written(at: float) -> tuple[list[list[int]], float]:
        began = time.perf_counter()
        ids = draw(writer, count, length, temperature=at, **how, **options)
        return ids, (time.perf_counter() - began) / count

    if match_entropy is not None:
        temperature = search_temperature(lambda at: written(at)[0], match_entropy)
    ids, seconds = written(temperature)
    backend = writer.tokenizer.backend
    facts: dict[str, Any] = {
        "model": writer.name,
        "weights": writer.fingerprint,
        "config": writer.config,
        "model_precision": writer.precision,
        **how,
        "length": length,
        "temperature": temperature,
        "seed": seed,
        "sampling_precision": "float64",
        "seconds_a_text": seconds,
    }
    texts = backend.decode_batch(ids, skip_special_tokens=False)
    return Samples(texts, ids, backend.get_vocab(), facts)


def check_writer(writer: Loaded, streams: int, steps: int | None) -> None:
    if writer.kind not in ("armd", "armd-baseline"):
        raise ArmdError(f"{writer.name} is no model of ours; give a file of its samples instead")
    if writer.kind == "armd" and steps is not None:
        raise ArmdError("--steps is for diffusion baselines; this model takes --streams")
    if writer.kind == "armd-baseline" and streams != 1:
        raise ArmdError(f"{writer.model.config.model} has no streams; use --steps")
    if steps is not None and steps < 1:
        raise ArmdError(f"--steps {steps} must be at least 1")


def draw(
    writer: Loaded,
    count: int,
    length: int,
    *,
    streams: int = 1,
    steps: int = 0,
    temperature: float,
    seed: int,
    batch: int,
) -> list[list[int]]:
    """Texts of token ids. Ours are drawn each from its own seed, those of a baseline a batch at a
    time, in at most `steps` passes."""
    from ..generation.api import generate

    found: list[list[int]] = []
    for start in range(0, count, batch):
        part = range(start, min(start + batch, count))
        if steps:
            drawn = writer.model.sample(
                batch=len(part),
                length=length,
                steps=steps,
                temperature=temperature,
                generator=seeded(seed, start),
            )
            found += drawn.tokens.tolist()
            continue
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
