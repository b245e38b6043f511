"""`armd generate`: text from a model, after prompts or around blanks."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .generate_inputs import Request, batches, canvas_of
from .generate_options import Writing, check, opened, requested, sampling_of

if TYPE_CHECKING:
    from ..baselines.base import Baseline
    from ..data.tokenizer import TextTokenizer
    from ..generation.sampling import Sampling
    from ..model.modeling_armd import ArmdLM
    from ..runtime.processes import ProcessGroup

MATCHED = 16  # texts over which --match-entropy takes its mean


@dataclass(frozen=True)
class Written:
    """One finished text: ids, and for each, step and log-probability (None: given)."""

    ids: list[int]
    steps: list[int | None]
    logp: list[float | None]
    calls: int | None = None
    """Of a diffusion rival, which says neither of the two: model calls of the text's batch."""

    @property
    def drawn(self) -> int:
        return sum(step is not None for step in self.steps)


def generate(job: Writing) -> dict[str, Any]:
    """Write text: continue prompts, or fill the blanks of a template."""
    from ..runtime.processes import process_group

    check(job)
    sampling = sampling_of(job)
    model, tokenizer = opened(job)
    requests = requested(job, model, tokenizer)
    # bad orders and stream numbers are found before anything is written
    canvas_of(requests[:1], order=job.order, streams=job.streams, seed=job.seed)
    with process_group() as ranks:
        sampling = ranks.from_first(
            matched(job, model, tokenizer, sampling, requests) if ranks.first else None
        )
        figures = write_all(job, model, tokenizer, sampling, requests, ranks)
    if ranks.first:
        report(job, figures)
    return figures


def matched(
    job: Writing,
    model: ArmdLM,
    tokenizer: TextTokenizer,
    sampling: Sampling,
    requests: list[Request],
) -> Sampling:
    """The sampling with the temperature that --match-entropy asks for."""
    if job.match_entropy is None:
        return sampling
    from dataclasses import replace

    from ..eval.entropy import search_temperature

    some = [replace(requests[i % len(requests)], index=i) for i in range(MATCHED)]

    def written(temperature: float) -> list[list[int]]:
        at = replace(sampling, temperature=temperature)
        groups = batches(some, job.batch)
        return [text.ids for group in groups for text in write(job, model, tokenizer, at, group)[0]]

    return replace(sampling, temperature=search_temperature(written, job.match_entropy))


def write(
    job: Writing,
    model: ArmdLM | Baseline,
    tokenizer: TextTokenizer,
    sampling: Sampling,
    requests: Sequence[Request],
    watch: Callable[..., None] | None = None,
) -> tuple[list[Written], int]:
    """One batch, and the model calls it took. `watch` sees tokens and steps after each call."""
    import torch

    from ..baselines.base import Baseline
    from ..generation.api import fill
    from ..runtime.seeds import seeded

    if isinstance(model, Baseline):
        return diffused(job, model, tokenizer, sampling, requests)
    canvas = canvas_of(requests, order=job.order, streams=job.streams, seed=job.seed)
    eos = tokenizer.eos if job.stop and job.template is None else None
    generators = [seeded(job.seed, request.index) for request in requests]
    text = torch.nn.functional.pad(canvas.tokens, (0, 1))
    when, logp = torch.full_like(text, -1), torch.zeros_like(text, dtype=torch.float64)
    calls = 0
    for step in fill(model, canvas, sampling=sampling, generator=generators, eos=eos):
        at, drawn = step.position.cpu(), step.drawn.cpu()
        text.scatter_(1, at, step.token.cpu().where(drawn, text.gather(1, at)))
        when.scatter_(1, at, torch.where(drawn, step.index, when.gather(1, at)))
        logp.scatter_(1, at, step.logp.cpu().where(drawn, logp.gather(1, at)))
        calls += 1
        if watch is not None:
            watch(text[0, :-1].tolist(), when[0, :-1].tolist(), canvas.steps)
    rows = zip(text[:, :-1].tolist(), when.tolist(), logp.tolist(), strict=True)
    return [finished(*row, eos) for row in rows], calls


def diffused(
    job: Writing,
    model: Baseline,
    tokenizer: TextTokenizer,
    sampling: Sampling,
    requests: Sequence[Request],
) -> tuple[list[Written], int]:
    """The same from a rival that writes all tokens of a batch together."""
    from ..runtime.seeds import seeded

    length = len(requests[0].tokens)
    drawn = model.sample(
        batch=len(requests),
        length=length,
        steps=job.steps or length,
        temperature=sampling.temperature,
        generator=seeded(job.seed, requests[0].index),
    )
    eos, texts = tokenizer.eos if job.stop else None, []
    for ids in drawn.tokens.tolist():
        end = ids.index(eos) + 1 if eos in ids else length
        texts.append(Written(ids[:end], [0] * end, [None] * end, drawn.calls))
    return texts, drawn.calls


def finished(ids: list[int], when: list[int], logp: list[float], eos: int | None) -> Written:
    """What stands behind the first EOS that was drawn, by other streams, is no part of the text."""
    ends = (i + 1 for i, token in enumerate(ids) if token == eos and when[i] >= 0)
    end = next(ends, len(ids))
    drawn = [(step, p) if step >= 0 else (None, None) for step, p in zip(when, logp, strict=True)]
    return Written(ids[:end], [step for step, _ in drawn[:end]], [p for _, p in drawn[:end]])


def write_all(
    job: Writing,
    model: ArmdLM,
    tokenizer: TextTokenizer,
    sampling: Sampling,
    requests: list[Request],
    ranks: ProcessGroup,
) -> dict[str, Any]:
    """Every request, shared over the processes; the figures, complete in the first of them."""
    from ..eval.entropy import mean_entropy
    from .generate_outputs import Records
    from .terminal_view import bar

    settings = told(job, model, sampling, max(len(request.tokens) for request in requests))
    write_some = partial(write, job, model, tokenizer, sampling)
    mine, start = ranks.share(requests), time.perf_counter()
    calls, tokens, busy = 0, 0, 0.0
    quiet = job.show or (job.out is None and sys.stdout.isatty())
    with Records(job, settings, tokenizer, ranks) as records, bar(len(mine), shown=not quiet) as go:
        for group in batches(mine, 1 if job.show else job.batch):
            begin = time.perf_counter()
            with records.watching(group) as watch:
                texts, made = write_some(group, watch)
            busy += time.perf_counter() - begin
            calls, tokens = calls + made, tokens + sum(text.drawn for text in texts)
            for request, text in zip(group, texts, strict=True):
                records.add(request, text)
            go(records.count, f"{tokens / busy:,.1f} tokens/s")
        parts = ranks.gather((calls, tokens, busy, records.made))
        made = records.merge([record for part in parts for record in part[3]])
    seconds = max((part[2] for part in parts), default=busy)
    total = sum(part[1] for part in parts)
    return {
        "texts": len(made),
        "model_calls": sum(part[0] for part in parts),
        "tokens": total,
        "tokens_per_second": total / max(seconds, 1e-9),
        "seconds": seconds,
        "elapsed": time.perf_counter() - start,
        "entropy_bits": mean_entropy([record["ids"] for record in made]),
        "settings": settings,
    }


def told(job: Writing, model: ArmdLM, sampling: Sampling, length: int) -> dict[str, Any]:
    """The settings that made a sample, to be kept beside it."""
    return {
        "model": job.model,
        "length": length,
        "streams": job.streams,
        "order": job.order,
        "steps": job.steps,
        **asdict(sampling),
        "match_entropy": job.match_entropy,
        "seed": job.seed,
        "stop": job.stop,
        "weights": job.weights,
        "precision": str(model.dtype).removeprefix("torch."),
        "sampling_precision": "float64",
    }


def report(job: Writing, figures: dict[str, Any]) -> None:
    """The last line, and --json."""
    if job.match_entropy is not None:
        temperature, bits = figures["settings"]["temperature"], figures["entropy_bits"]
        print(f"temperature {temperature:.4f}, entropy {bits:.3f} bits", file=sys.stderr)
    print(
        f"{figures['model_calls']:,} model calls, {figures['tokens']:,} tokens, "
        f"{figures['tokens_per_second']:,.1f} tokens/s, {figures['seconds']:.2f} s",
        file=sys.stderr,
    )
    if job.json is not None:
        job.json.parent.mkdir(parents=True, exist_ok=True)
        job.json.write_text(jsonlib.dumps(figures, indent=1) + "\n", "utf-8")
