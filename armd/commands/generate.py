"""`armd generate`: text from a model, after prompts or around blanks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ArmdError
from ..runtime.atomic_files import write_figures
from ..runtime.progress import progress, rate
from .generate_inputs import Request, batches, plans_of
from .generate_options import Writing, check, check_out, opened, requested, sampling_of

if TYPE_CHECKING:
    from ..baselines.base import Baseline
    from ..data.tokenizer import TextTokenizer
    from ..generation.sequence import Sequence
    from ..model.modeling_armd import ArmdLM
    from ..model.sampling import Sampling
    from ..runtime.processes import ProcessGroup

MATCHED = 16  # texts over which --match-entropy takes its mean


@dataclass(frozen=True)
class Written:
    """One finished text: ids, and for each, step and log-probability (None: given)."""

    ids: list[int]
    steps: list[int | None]
    logp: list[float | None]
    calls: int | None = None
    """Of a diffusion baseline, which says neither of the two: model calls of the text's batch."""

    @property
    def drawn(self) -> int:
        return sum(step is not None for step in self.steps)


def generate(job: Writing) -> dict[str, Any]:
    """Write text: continue prompts, or fill the blanks of a template."""
    from ..runtime.processes import process_group

    check(job)
    sampling = sampling_of(job)
    model, tokenizer, digest = opened(job)
    requests = requested(job, model, tokenizer)
    # bad orders and stream numbers are found before anything is written
    plans_of(requests[:1], order=job.order, streams=job.streams, seed=job.seed)
    check_out(job)
    with process_group() as ranks:
        sampling = ranks.from_first(
            matched(job, model, tokenizer, sampling, requests) if ranks.first else None
        )
        if ranks.from_first(digest) != digest:
            raise ArmdError(f"{job.model} was replaced while it was loaded; give the command again")
        figures = write_all(job, model, tokenizer, sampling, requests, ranks, digest)
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
    requests: Several[Request],
    watch: Callable[..., None] | None = None,
) -> tuple[list[Written], int]:
    """One batch, and the model calls it took. `watch` sees tokens and steps after each call."""
    from ..baselines.base import Baseline
    from ..generation.api import decode, make_sequences
    from ..runtime.seeds import seeded

    if isinstance(model, Baseline):
        return diffused(job, model, tokenizer, sampling, requests)
    if job.candidates > 1:
        return from_candidates(job, model, sampling, requests)
    plans = plans_of(requests, order=job.order, streams=job.streams, seed=job.seed)
    eos = tokenizer.eos if job.stop and job.template is None else None
    generators = [seeded(job.seed, request.index) for request in requests]
    options = {"sampling": sampling, "generator": generators, "eos": eos}
    sequences, calls = make_sequences(model, plans, **options), 0
    for _ in decode(model, sequences):
        calls += 1
        if watch is not None:
            watch(sequences[0].tokens.tolist(), drawn_in(sequences[0]), plans[0].steps)
    return [finished(sequence) for sequence in sequences], calls


def from_candidates(
    job: Writing, model: ArmdLM, sampling: Sampling, requests: Several[Request]
) -> tuple[list[Written], int]:
    """The same with several fills of each blank, one of which is kept. How probable it is that this
    one is kept is not known."""
    import torch

    from ..generation.plan import from_blanks
    from ..infilling import choose_fills
    from ..runtime.seeds import seeded

    texts, calls = [], 0
    for request in requests:
        tokens, known = torch.tensor([request.tokens]), torch.tensor(request.known)
        options = {"streams": job.streams, "generator": [seeded(job.seed, request.index)]}
        options |= asdict(sampling)
        filled, made = choose_fills(model, from_blanks(tokens, known), job.candidates, **options)
        ids, calls = filled[0].tolist(), calls + made
        steps = [None if there else 0 for there in request.known]
        texts.append(Written(ids, steps, [None] * len(ids)))
    return texts, calls


def diffused(
    job: Writing,
    model: Baseline,
    tokenizer: TextTokenizer,
    sampling: Sampling,
    requests: Several[Request],
) -> tuple[list[Written], int]:
    """The same from a baseline that writes all tokens of a batch together."""
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


def drawn_in(sequence: Sequence) -> list[int | None]:
    """The step that drew each token; None: given, or not there yet."""
    plan = sequence.plan
    found: list[int | None] = [None] * len(sequence.tokens)
    ends = plan.step_ends
    for step in range(sequence.step):
        for at in plan.position[ends[step] : ends[step + 1]]:
            found[at] = None if plan.known[at] else step
    return found


def finished(sequence: Sequence) -> Written:
    """What other streams drew behind the end is no part of the text."""
    steps, end = drawn_in(sequence), sequence.end
    upto = len(steps) if end is None else end + 1
    pairs = zip(steps, sequence.logp, strict=True)
    logp = [None if step is None else p for step, p in pairs]
    return Written(sequence.tokens[:upto].tolist(), steps[:upto], logp[:upto])


def write_all(
    job: Writing,
    model: ArmdLM,
    tokenizer: TextTokenizer,
    sampling: Sampling,
    requests: list[Request],
    ranks: ProcessGroup,
    digest: str,
) -> dict[str, Any]:
    """Every request, shared over the processes; the figures, complete in the first of them."""
    from ..eval.entropy import mean_entropy
    from .generate_outputs import Records

    length = max(len(request.tokens) for request in requests)
    settings = settings_of(job, model, sampling, length, digest)
    write_some = partial(write, job, model, tokenizer, sampling)
    mine, start = ranks.share(requests), time.perf_counter()
    calls, tokens, busy = 0, 0, 0.0
    quiet = job.show or (job.out is None and sys.stdout.isatty())
    bar = progress("writing", len(mine), shown=not quiet and len(mine) > 1)
    with Records(job, settings, requests, tokenizer, ranks) as records, bar as report:
        for group in batches(mine, 1 if job.show else job.batch):
            if all(request.index in records.done for request in group):
                continue
            begin = time.perf_counter()
            with records.watching(group) as watch:
                texts, made = write_some(group, watch)
            busy += time.perf_counter() - begin
            calls, tokens = calls + made, tokens + sum(text.drawn for text in texts)
            for request, text in zip(group, texts, strict=True):
                records.add(request, text)
            report(records.count, f"{records.count} of {len(mine)}, {rate(tokens, busy)}")
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


def settings_of(
    job: Writing, model: ArmdLM, sampling: Sampling, length: int, digest: str
) -> dict[str, Any]:
    """The settings that made a sample, to be kept beside it."""
    from .generate_outputs import DIGEST

    more = {"candidates": job.candidates} if job.candidates > 1 else {}
    more |= {"cache": job.cache} if job.cache != "fp32" else {}
    return {
        "model": job.model,
        DIGEST: digest,
        "length": length,
        "streams": job.streams,
        **more,
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
        write_figures(job.json, figures)
