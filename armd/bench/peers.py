"""What an engineer would use instead on a CPU: llama.cpp, with a model of the same shape, timed
beside our own decoding."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..convert.to_gguf import to_gguf
from ..model.configuration_armd import ArmdConfig
from .armd_decode import DEPTHS
from .decode import Side
from .timing import timed

KINDS = ("F32", "Q8_0", "Q4_0")
"""Types of weights that llama.cpp is timed with."""
GET = "pip install llama-cpp-python  (it compiles llama.cpp for this machine)"


def llama_sides(
    config: ArmdConfig, batch: int, *, length: int, passes: int, model: str | None = None
) -> dict[str, Side]:
    """llama.cpp writing texts of `length` tokens, `batch` sequences in parallel, with the weights
    of `model`, or random ones of the same shape, sampling from the whole vocabulary as we do.
    Empty, with a line, where llama-cpp-python is not installed."""
    made = llama_decoders(config, batch, length=length, model=model)
    return {f"llama.cpp {kind}": decoder.side(passes) for kind, decoder in made.items()}


def llama_prefills(config: ArmdConfig, prompt: int, model: str | None) -> dict[str, Callable]:
    """llama.cpp passing over a prompt of so many tokens; weights as above."""
    made = llama_decoders(config, 1, length=prompt, model=model)
    return {f"llama.cpp {kind}": partial(d.fill, prompt) for kind, d in made.items()}


def llama_decoders(
    config: ArmdConfig, batch: int, *, length: int, model: str | None
) -> dict[str, LlamaCpp]:
    if importlib.util.find_spec("llama_cpp") is None:
        print(f"llama.cpp is not timed: {GET}")
        return {}
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            file = Path(folder) / f"{kind}.gguf"
            if model is None:
                write_random(file, config, kind)
            else:
                to_gguf(model, file, kind)
            made[kind] = LlamaCpp(file, length, batch)  # reads the whole file
    return made


def write_random(file: Path, config: ArmdConfig, kind: str) -> None:
    """A GGUF file of a Llama model of our shape, with small random weights and no tokenizer."""
    import gguf

    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(config.max_length + 1)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_rope_dimension_count(config.d_head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    stored, random = getattr(gguf.GGMLQuantizationType, kind), np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape, np.float32) * 0.02
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones_like(values))
            return
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, stored), raw_dtype=stored)

    d, kv, ff = config.d_model, config.n_kv_heads * config.d_head, config.d_ff
    inner = {"attn_q": (config.n_heads * config.d_head, d), "attn_k": (kv, d), "attn_v": (kv, d)}
    inner |= {"attn_output": (d, config.n_heads * config.d_head), "attn_norm": (d,)}
    inner |= {"ffn_gate": (ff, d), "ffn_up": (ff, d), "ffn_down": (d, ff), "ffn_norm": (d,)}
    add("token_embd", config.vocab_size, d)
    add("output_norm", d)
    for layer in range(config.n_layers):
        for name, shape in inner.items():
            add(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """`batch` sequences of `length` tokens in one context of llama.cpp."""

    def __init__(self, file: Path, length: int, batch: int) -> None:
        c: Any = importlib.import_module("llama_cpp")

        self.c, self.length, self.batch = c, length, batch
        quiet(c)
        c.llama_backend_init()
        model, context = c.llama_model_default_params(), c.llama_context_default_params()
        model.use_mmap = False
        context.n_ctx, context.n_batch = batch * (length + 64), 512
        context.n_seq_max = batch
        context.n_threads = context.n_threads_batch = torch.get_num_threads()
        self.model = c.llama_model_load_from_file(str(file).encode(), model)
        self.context = c.llama_init_from_model(self.model, context)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        self.sampler = c.llama_sampler_init_dist(0)
        self.bytes = file.stat().st_size
        self.rows = c.llama_batch_init(max(512, batch), 0, 1)

    def fill(self, depth: int) -> None:
        """Bring every sequence to `depth` tokens: one is computed, the others are copies of it."""
        c, memory = self.c, self.c.llama_get_memory(self.context)
        c.llama_memory_clear(memory, False)
        for start in range(0, depth, 512):
            places = range(start, min(depth, start + 512))
            self._decode([(0, place, False) for place in places], [1] * len(places))
        for sequence in range(1, self.batch):
            c.llama_memory_seq_cp(memory, 0, sequence, -1, -1)

    def cut(self, depth: int) -> None:
        """Forget all tokens of every sequence from `depth` on."""
        memory = self.c.llama_get_memory(self.context)
        for sequence in range(self.batch):
            if not self.c.llama_memory_seq_rm(memory, sequence, depth, -1):
                raise RuntimeError("llama.cpp cannot shorten a sequence")

    def write(self, depth: int, count: int) -> None:
        """Draw `count` tokens of every sequence, one forward pass for each."""
        tokens = [1] * self.batch
        for place in range(depth, depth + count):
            self._decode([(s, place, True) for s in range(self.batch)], tokens)
            tokens = [
                self.c.llama_sampler_sample(self.sampler, self.context, s)
                for s in range(self.batch)
            ]

    def _decode(self, rows: list[tuple[int, int, bool]], tokens: list[int]) -> None:
        batch = self.rows
        batch.n_tokens = len(rows)
        for i, ((sequence, place, wanted), token) in enumerate(zip(rows, tokens, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, place, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        if self.c.llama_decode(self.context, batch):
            raise RuntimeError("llama.cpp cannot decode this batch")

    def side(self, passes: int) -> Side:
        each = min(passes, self.length // 10) or self.length
        starts = [round(share * self.length) for share in DEPTHS] if passes else [1]

        def run() -> float:
            seconds = 0.0
            self.fill(max(starts))
            for start in sorted(starts, reverse=True):
                self.cut(start)
                seconds += timed(lambda: self.write(start, each), torch.device("cpu"))  # noqa: B023
            return seconds

        return Side(
            run=run,
            calls=self.length,
            scale=self.length / (each * len(starts)),
            bytes_a_call=self.bytes,
            measured=f"{each * len(starts)} calls" if passes else "whole",
            peak=lambda: None,
        )


def quiet(c: Any) -> None:
    """llama.cpp writes all about each model to stderr."""
    global _silent
    _silent = c.llama_log_callback(lambda level, text, data: None)
    c.llama_log_set(_silent, ctypes.c_void_p())


_silent: Callable[..., None] | None = None
"""Kept, because C calls it later."""
