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
    def written(at: float) -> tuple[list[list[int]], int, float]:
        began = time.perf_counter()
        ids, calls = draw(writer, count, length, temperature=at, **how, **options)
        return ids, calls, (time.perf_counter() - began) / count

    if match_entropy is not None:
        temperature = search_temperature(lambda at: written(at)[0], match_entropy)
    ids, calls, seconds = written(temperature)
    backend = writer.tokenizer.backend
    facts: dict[str, Any] = {
        "model": writer.name,
        "weights": writer.fingerprint,
        "config": writer.config,
        "model_precision": writer.precision,
        **how,
        "model_calls": calls,
        "batches": -(-count // batch),
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
) -> tuple[list[list[int]], int]:
    """Texts of token ids, and the model calls of all batches. Ours are drawn each from its own
    seed, those of a baseline a batch at a time: in at most `steps` calls, if it can."""
    from ..generation.api import decode, make_sequences
    from ..generation.plan import from_prompts
    from ..model.sampling import Sampling

    sampling, calls = Sampling(temperature=temperature), 0
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
            found, calls = found + drawn.tokens.tolist(), calls + drawn.calls
            continue
        plans = from_prompts([[] for _ in part], length=length, streams=streams)
        generators = [seeded(seed, number) for number in part]
        sequences = make_sequences(writer.model, plans, sampling, generator=generators)
        calls += sum(1 for _ in decode(writer.model, sequences))
        found += [sequence.text() for sequence in sequences]
    return found, calls
