"""Stage generation: texts of every sampler at equal entropy, read by two judges (Table 2).

All samplers are brought to the unigram entropy of real text by their temperature, because a sharper
sampler always looks better to a judge."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import torch

from ..data.dataset import open_dataset
from ..errors import ArmdError
from ..eval.entropy import mean_entropy, search_temperature
from ..generation.api import generate
from ..model.likelihood import log_likelihood
from ..model.order import left_to_right
from ..runtime.seeds import seeded
from .result_file import Findings
from .runs import WRITERS, Study
from .scores import dataset_of, heldout, load, weights_of
from .train_runs import require

BATCH = 64
TRIED = 4
"""The search for a temperature draws one text of so many each time."""
SLOPE = {"sharper": 0.85, "flatter": 1.0}
"""Temperatures at which one sampler is judged to see what a bit of entropy is worth."""
STREAMS = {"armd": (1, 4), "sbp-10": (1, 2, 4), "sbp-20": (1, 2, 4, 8), "sbp-40": (1, 2, 4)}


@dataclass(frozen=True)
class Judges:
    """Who reads the samples."""

    own: Any
    """A larger autoregressive model of the same text."""
    large: Any
    """SmolLM2, or None where it is not installed."""
    tokenizer: Any
    most: int
    """Texts that the large one reads."""


@dataclass(frozen=True)
class Sampler:
    """A model and how many passes it may spend; write(model, temperature, numbers) gives texts."""

    name: str
    run: str
    passes: int
    write: Callable[[Any, float, range], tuple[list[list[int]], int]]
    texts: int


def measure(study: Study, findings: Findings) -> None:
    judges = load_judges(study)
    length = study.scale.base.network.length
    real = [row.tolist() for t, s in heldout(study) for row in t[s.all(1)]][: study.scale.samples]
    bits = mean_entropy(real)
    facts = {
        **dataset_of(study),
        "length": length,
        "judge": weights_of(study.run("judge")),
        "large": judges.large and judges.large.name,
        "judged": judges.most,
    }
    findings.entry("real text", {**facts, "texts": len(real)}, lambda: judged(real, judges))
    model, loaded = None, ""
    for sampler in samplers(study):
        folder = require(study, sampler.run)
        if loaded != sampler.run:
            model, loaded = load(folder), sampler.run
        now = {**facts, **weights_of(folder), "texts": sampler.texts, "bits": bits}
        findings.entry(sampler.name, now, partial(write_and_judge, sampler, model, bits, judges))
    steady = next(sampler for sampler in samplers(study) if sampler.name == "sbp-20 S=1")
    model = load(require(study, steady.run))
    for name, temperature in SLOPE.items():
        now = {**facts, **weights_of(study.run(steady.run)), "temperature": temperature}
        now["texts"] = steady.texts // 2
        findings.entry(
            f"slope {name}", now, partial(at_temperature, steady, model, temperature, judges)
        )


def samplers(study: Study) -> list[Sampler]:
    """Ours with S streams, before and after each strided phase; baselines with as many passes."""
    scale, n = study.scale, study.scale.base.network.length
    found = []
    for run, counts in STREAMS.items():
        for s in counts:
            write = partial(by_streams, n, s)
            found.append(Sampler(f"{run} S={s}", run, s - 1 + -(-n // s), write, scale.samples))
    for run in WRITERS:
        if run == "ar":
            found.append(Sampler("ar", "ar", n, partial(by_streams, n, 1), scale.samples))
            continue
        for steps in (n, n // 2, n // 4):
            write = partial(by_steps, n, steps)
            found.append(Sampler(f"{run} T={steps}", run, steps, write, scale.judged))
    return found


def by_streams(
    length: int, streams: int, model: Any, temperature: float, numbers: range
) -> tuple[list[list[int]], int]:
    texts: list[list[int]] = []
    for start in range(numbers.start, numbers.stop, BATCH):
        part = range(start, min(start + BATCH, numbers.stop))
        made = generate(
            model,
            length=length,
            prompt=[[] for _ in part],
            streams=streams,
            temperature=temperature,
            generator=[seeded("study", number) for number in part],
        )
        texts += made.tolist()
    return texts, streams - 1 + -(-length // streams)


def by_steps(
    length: int, steps: int, model: Any, temperature: float, numbers: range
) -> tuple[list[list[int]], int]:
    texts: list[list[int]] = []
    calls = 0
    for start in range(numbers.start, numbers.stop, BATCH):
        with torch.no_grad():
            drawn = model.sample(
                batch=min(BATCH, numbers.stop - start),
                length=length,
                steps=steps,
                temperature=temperature,
                generator=seeded("study", start),
            )
        texts, calls = texts + drawn.tokens.tolist(), max(calls, drawn.calls)
    return texts, calls


def write_and_judge(sampler: Sampler, model: Any, bits: float, judges: Judges) -> dict[str, Any]:
    """Find the temperature, write, and let both judges read."""
    tried = range(max(1, sampler.texts // TRIED))
    try:
        temperature = search_temperature(
            lambda at: sampler.write(model, at, tried)[0], bits, tolerance=0.03, low=0.5, high=1.6
        )
    except ArmdError as error:
        return {"failed": str(error)}
    began = time.perf_counter()
    texts, calls = sampler.write(model, temperature, range(sampler.texts))
    seconds = time.perf_counter() - began
    return {
        "temperature": temperature,
        "calls": calls,
        "seconds_a_text": seconds / len(texts),
        **judged(texts, judges),
    }


def at_temperature(
    sampler: Sampler, model: Any, temperature: float, judges: Judges
) -> dict[str, Any]:
    texts, _ = sampler.write(model, temperature, range(sampler.texts // 2))
    return judged(texts, judges)


def judged(texts: list[list[int]], judges: Judges) -> dict[str, Any]:
    """Entropy and both judges' perplexities, each with the standard error of its logarithm."""
    figures: dict[str, Any] = {"texts": len(texts), "entropy_bits": mean_entropy(texts)}
    figures |= named("own", own_surprise(texts, judges.own))
    decode = judges.tokenizer.decode
    strings = [str(decode(row, skip_special_tokens=True)) for row in texts[: judges.most]]
    if judges.large is not None:
        rows = judges.large.encode(strings)
        figures |= named("large", judges.large.surprise(rows, batch=16))
    return figures | {"example": strings[0]}


def own_surprise(texts: list[list[int]], model: Any) -> list[list[float]]:
    found: list[list[float]] = []
    with torch.no_grad():
        for part in torch.tensor(texts).split(BATCH):
            logp = log_likelihood(model, part, left_to_right(part.shape[1]))
            found += (-logp[:, 1:].double()).tolist()
    return found


def named(judge: str, surprise: list[list[float]]) -> dict[str, Any]:
    """Corpus perplexity, and how sure its logarithm is, from text to text."""
    counts = torch.tensor([float(len(row)) for row in surprise], dtype=torch.float64)
    sums = torch.tensor([sum(row) for row in surprise], dtype=torch.float64)
    nats = float(sums.sum() / counts.sum())
    spread = (sums - nats * counts) / counts.mean()
    error = float(spread.std() / len(surprise) ** 0.5) if len(surprise) > 1 else 0.0
    return {f"{judge}_perplexity": exp(nats), f"{judge}_error": error}


def load_judges(study: Study) -> Judges:
    from ..eval.judge import load_judge

    try:
        large: Any = load_judge("smollm2")
    except ArmdError as error:
        print(f"  without the large judge: {error}", flush=True)
        large = None
    own = load(Path(require(study, "judge")))
    return Judges(own, large, open_dataset(study.data).tokenizer(), study.scale.judged)
