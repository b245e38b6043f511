"""What `armd generate` is asked for: the options, and the model, texts and sampling they mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..baselines import knows_orders, name_of
from ..errors import ArmdError
from .generate_inputs import Request, from_prompts, from_template, read_prompts

if TYPE_CHECKING:
    from ..data.tokenizer import TextTokenizer
    from ..model.sampling import Sampling


@dataclass(frozen=True)
class Writing:
    """What to write, and how."""

    model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]]
    """A training run, or a folder of save_pretrained with its tokenizer."""
    prompt: str | None = None
    """The text to continue; without any, texts start from nothing."""
    prompts: Path | None = None
    """A file of prompts: .txt, one a line, or .jsonl with a prompt each."""
    chat: bool = False
    """The prompts are a user's messages: put the model's chat template around each."""
    template: str | None = None
    """A text with blanks of two or more underscores, "The ____ jumped over ____."."""
    blank_lengths: str = ""
    """Tokens of the blanks: 4 for all, 3,5 one for each; if not given, 1 to 8, from the seed."""
    candidates: int = 1
    """Fills to draw for each blank of a template; one is kept, by how well it leads to the text
    behind it, left to right."""
    length: int | None = None
    """Tokens of a text, its prompt included; 256, or the most the model takes."""
    count: int = 1
    """Texts to write for each prompt."""
    streams: int = 1
    """Runs written side by side: so many tokens a model call."""
    steps: int | None = None
    """Of a diffusion baseline: the model calls it may take; one for each token if not given.
    BD3-LM takes at least one a block, transformer-xl one a token."""
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
    resume: bool = False
    """Go on with the file of --out: what is in it is kept, and only the rest is written."""
    overwrite: bool = False
    """Replace the file of --out, if there is one."""
    weights: Literal["fp32", "bf16", "int8", "q8", "q4", "plain"] = "fp32"
    """fp32: packed for fast decoding, where that is to be had; bf16, int8, q8 (8 bits, a scale for
    each 32), q4 (4 bits): less to read; plain: as they are."""
    cache: Literal["fp32", "bf16"] = "fp32"
    """Keys and values of the tokens so far; bf16 takes half the memory, rounded to 8 bits."""
    threads: int | None = None
    """CPU threads; by default one for a small model, else one a core."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    json: Path | None = None
    """The figures go here."""


def sampling_of(job: Writing) -> Sampling:
    from ..model.sampling import Sampling

    return Sampling(
        temperature=job.temperature,
        top_k=job.top_k,
        top_p=job.top_p,
        min_p=job.min_p,
        repetition_penalty=job.repetition_penalty,
    )


MOST = {"count": 10**6, "batch": 2**16, "length": 2**24, "steps": 10**6, "threads": 1024}
MOST |= {"candidates": 1024}


def check_out(job: Writing) -> None:
    """What is there already is not lost by mistake."""
    if job.out is None:
        if job.resume or job.overwrite:
            raise ArmdError("--resume and --overwrite are for the file of --out; name it")
        return
    if job.resume and job.overwrite:
        raise ArmdError("give one of --resume and --overwrite, not both")
    if job.resume and job.out.exists() and not job.out.is_file():
        raise ArmdError(f"{job.out} is a pipe or a device, which keeps no samples; name a file")
    refuse_lost(job, job.out)


def refuse_lost(job: Writing, file: Path) -> None:
    if file.is_file() and file.stat().st_size and not (job.resume or job.overwrite):
        raise ArmdError(
            f"{file} is there already; --resume goes on with it, --overwrite replaces it"
        )


def check(job: Writing) -> None:
    """Refuse what is wrong whatever the model."""
    if sum(given is not None for given in (job.prompt, job.prompts, job.template)) > 1:
        raise ArmdError("give one of --prompt, --prompts and --template, not more")
    for name, most in MOST.items():
        value = getattr(job, name)
        if value is not None and not 1 <= value <= most:
            raise ArmdError(f"--{name} {value} must be between 1 and {most}")
    if not -(2**63) <= job.seed < 2**63:
        raise ArmdError(f"--seed {job.seed} must be a number of 64 bits")
    if job.match_entropy is not None and not 0 < job.match_entropy < 64:
        raise ArmdError(f"--match-entropy {job.match_entropy:g} must be bits between 0 and 64")
    if job.match_entropy is not None and job.temperature != 1:
        raise ArmdError("--match-entropy searches the temperature; leave out --temperature")
    if job.chat and job.template is not None:
        raise ArmdError("--chat is for prompts, not for a --template; leave it out")
    if job.blank_lengths and job.template is None:
        raise ArmdError("--blank-lengths is for the blanks of a --template; give one")
    if job.candidates > 1 and (job.template is None or job.order != "left-to-right"):
        raise ArmdError("--candidates is for the blanks of a --template, without --order")
    if job.template is not None and job.length is not None:
        raise ArmdError("a template has its own length; use --blank-lengths instead of --length")
    if job.json is not None and job.out is not None and job.json.resolve() == job.out.resolve():
        raise ArmdError("--json and --out name one file; the figures need one of their own")
    for file in (job.out, job.json):
        if file is not None and file.is_dir():
            raise ArmdError(f"{file} is a folder; name a file to write to")


def opened(job: Writing) -> tuple[Any, TextTokenizer, str]:
    """The model (an ArmdLM, or a Baseline), with the weights asked for, its tokenizer, and which
    weights they are."""
    from ..checked_pack import pack_loaded
    from ..pretrained import in_memory, load_model, load_tokenizer, model_digest, model_folder
    from ..runtime.atomic_folders import unexchanged
    from ..runtime.threads import use_few_threads

    model, digest = unexchanged(
        model_folder(job.model),
        lambda: (load_model(job.model, device=job.device), model_digest(job.model)),
    )
    use_few_threads(model, job.threads)
    tokenizer = load_tokenizer(job.model, vocab_size=model.config.vocab_size)
    diffuses = not knows_orders(name_of(model.config))
    check_diffusion(job, name_of(model.config) if diffuses else None)
    if diffuses:
        return in_memory(model), tokenizer, digest
    return pack_loaded(model, weights=job.weights, cache=job.cache), tokenizer, digest


def check_diffusion(job: Writing, name: str | None) -> None:
    """What a diffusion baseline, of that name, cannot do, and what only such a one can."""
    if name is None:
        if job.steps is not None:
            raise ArmdError(
                "--steps is for diffusion models; this one takes --streams, or --order masking:T"
            )
        return
    for option, wrong in (
        ("--prompt", job.prompt),
        ("--prompts", job.prompts),
        ("--template", job.template),
        ("--streams", job.streams != 1),
        ("--order", job.order != "left-to-right"),
        ("--top-k", job.top_k),
        ("--top-p", job.top_p),
        ("--min-p", job.min_p),
        ("--repetition-penalty", job.repetition_penalty != 1),
        (f"--weights {job.weights}", job.weights not in ("fp32", "plain")),
        (f"--cache {job.cache}", job.cache != "fp32"),
        ("--chat", job.chat),
        ("--show", job.show),
    ):
        if wrong:
            raise ArmdError(
                f"{name} writes whole texts from nothing; leave out {option}, and use --steps, "
                "--temperature, --length and --count"
            )


def requested(job: Writing, model: Any, tokenizer: TextTokenizer) -> list[Request]:
    from ..data.chat_template import ChatTemplate
    from ..data.tokenizer import no_panic
    from ..pretrained import model_folder

    chat = ChatTemplate(model_folder(job.model)) if job.chat else None

    def encode(text: str) -> list[int]:
        if not text and chat is None:
            return []
        if chat is not None:
            text = chat.text([{"role": "user", "content": text}])
        with no_panic():
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
