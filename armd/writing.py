"""`armd generate`: text from a model, after prompts or around blanks."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from .errors import ArmdError
from .requests import Request, batches, canvas_of, from_prompts, from_template, read_prompts

if TYPE_CHECKING:
    from .data.tokenizer import TextTokenizer
    from .modeling_armd import ArmdLM
    from .sampling import Sampling
    from .sharing import Ranks

MATCHED = 16  # texts over which --match-entropy takes its mean


@dataclass(frozen=True)
class Writing:
    """What to write, and how."""

    model: tyro.conf.Positional[str]
    """A training run, or a folder of save_pretrained with its tokenizer."""
    prompt: str | None = None
    """The text to continue; without any, texts start from nothing."""
    prompts: Path | None = None
    """A file of prompts: .txt, one a line, or .jsonl with a prompt each."""
    template: str | None = None
    """A text with blanks of two or more underscores, "The ____ jumped over ____."."""
    blank_lengths: str = ""
    """Tokens of the blanks: 4 for all, 3,5 one for each; if not given, 1 to 8, from the seed."""
    length: int | None = None
    """Tokens of a text, its prompt included; 256, or the most the model takes."""
    count: int = 1
    """Texts to write for each prompt."""
    streams: int = 1
    """Runs written side by side: so many tokens a model call."""
    order: str = "left-to-right"
    """left-to-right, random (one token a call, anywhere) or masking:T (diffusion in T steps)."""
    temperature: float = 1.0
    """Below 1 sharper, above 1 flatter; 0 takes the most probable token."""
    top_k: int | None = None
    """Only the k most probable tokens."""
    top_p: float | None = None
    """Only the most probable tokens that together hold this probability."""
    min_p: float | None = None
    """Only tokens at least this share as probable as the most probable one."""
    repetition_penalty: float = 1.0
    """Above 1: tokens that the text has already become less probable."""
    match_entropy: float | None = None
    """Search the temperature whose texts have this unigram entropy, in bits."""
    seed: int = 0
    """Text i comes from (seed, i) alone, whatever the batch."""
    stop: bool = True
    """End a continuation at its first EOS. Templates are always filled whole."""
    batch: int = 8
    """Texts written at a time."""
    show: bool = False
    """Show each text as it appears, coloured by step; one at a time."""
    out: Path | None = None
    """Write the samples here, as JSON lines, each as soon as it is done."""
    weights: Literal["fp32", "int8", "plain"] = "fp32"
    """fp32: packed for fast decoding, where that is to be had; int8: rounded to 8 bits, less to
    read; plain: as they are."""
    threads: int | None = None
    """CPU threads."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    json: Path | None = None
    """The figures go here."""


@dataclass(frozen=True)
class Written:
    """One finished text: ids, and for each, step and log-probability (None: given)."""

    ids: list[int]
    steps: list[int | None]
    logp: list[float | None]

    @property
    def drawn(self) -> int:
        return sum(step is not None for step in self.steps)


def generate(job: Writing) -> dict[str, Any]:
    """Write text: continue prompts, or fill the blanks of a template."""
    from .sharing import joined

    check(job)
    sampling = sampling_of(job)
    model, tokenizer = opened(job)
    requests = requested(job, model, tokenizer)
    # bad orders and stream numbers are found before anything is written
    canvas_of(requests[:1], order=job.order, streams=job.streams, seed=job.seed)
    with joined() as ranks:
        sampling = ranks.from_first(
            matched(job, model, tokenizer, sampling, requests) if ranks.first else None
        )
        figures = write_all(job, model, tokenizer, sampling, requests, ranks)
    if ranks.first:
        report(job, figures)
    return figures


def sampling_of(job: Writing) -> Sampling:
    from .sampling import Sampling

    return Sampling(
        temperature=job.temperature,
        top_k=job.top_k,
        top_p=job.top_p,
        min_p=job.min_p,
        repetition_penalty=job.repetition_penalty,
    )


def check(job: Writing) -> None:
    """What can be told to be wrong before the model is there."""
    if sum(given is not None for given in (job.prompt, job.prompts, job.template)) > 1:
        raise ArmdError("give one of --prompt, --prompts and --template, not more")
    for name in ("count", "batch", "length", "threads"):
        value = getattr(job, name)
        if value is not None and value < 1:
            raise ArmdError(f"--{name} {value} must be at least 1")
    if job.blank_lengths and job.template is None:
        raise ArmdError("--blank-lengths is for the blanks of a --template; give one")
    if job.template is not None and job.length is not None:
        raise ArmdError("a template has its own length; use --blank-lengths instead of --length")
    for file in (job.out, job.json):
        if file is not None and file.is_dir():
            raise ArmdError(f"{file} is a folder; name a file to write to")


def opened(job: Writing) -> tuple[ArmdLM, TextTokenizer]:
    """The model, with the weights asked for, and its tokenizer."""
    import torch

    from .pretrained import load_model, load_tokenizer
    from .sharing import device_here

    if job.threads:
        torch.set_num_threads(job.threads)
    model = load_model(job.model, device=device_here(job.device))
    tokenizer = load_tokenizer(job.model, vocab_size=model.config.vocab_size)
    if job.weights == "plain":
        return model, tokenizer
    try:
        from .fast import pack  # type: ignore[import-not-found]
    except ImportError:
        if job.weights == "int8":
            raise ArmdError("int8 weights are not to be had here; use --weights fp32") from None
        return model, tokenizer
    return pack(model, weights=job.weights), tokenizer


def requested(job: Writing, model: ArmdLM, tokenizer: TextTokenizer) -> list[Request]:
    def encode(text: str) -> list[int]:
        return tokenizer.backend.encode(text, add_special_tokens=False).ids

    most = model.config.max_length
    if job.template is None:
        prompts = read_prompts(job.prompts) if job.prompts else [job.prompt or ""]
        length = min(256, most) if job.length is None else job.length
        if length > most:
            raise ArmdError(f"--length {length} passes the model's {most} tokens; lower it")
        return from_prompts(prompts, encode, length=length, count=job.count, max_length=most)
    requests = from_template(
        job.template, encode, lengths=job.blank_lengths, count=job.count, seed=job.seed
    )
    longest = max(len(request.tokens) for request in requests)
    if longest > most:
        raise ArmdError(
            f"the template makes {longest} tokens, the model takes {most}; shorten it or its blanks"
        )
    return requests


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

    from .entropy import search_temperature

    some = [replace(requests[i % len(requests)], index=i) for i in range(MATCHED)]

    def written(temperature: float) -> list[list[int]]:
        at = replace(sampling, temperature=temperature)
        groups = batches(some, job.batch)
        return [text.ids for group in groups for text in write(job, model, tokenizer, at, group)[0]]

    return replace(sampling, temperature=search_temperature(written, job.match_entropy))


def write(
    job: Writing,
    model: ArmdLM,
    tokenizer: TextTokenizer,
    sampling: Sampling,
    requests: Sequence[Request],
    watch: Callable[..., None] | None = None,
) -> tuple[list[Written], int]:
    """One batch, and the model calls it took. `watch` sees tokens and steps after each call."""
    import torch

    from .generation import fill
    from .seeds import seeded

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
    ranks: Ranks,
) -> dict[str, Any]:
    """Every request, shared over the processes; the figures, complete in the first of them."""
    from .entropy import mean_entropy
    from .records import Records
    from .showing import bar

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
