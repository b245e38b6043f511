"""CTranslate2 beside our own decoding: a Llama model of our shape with random weights, on which its
speed does not depend."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..model.configuration_armd import ArmdConfig
from .armd_decode import DEPTHS
from .decode import Side
from .timing import timed

KINDS = {"float32": 4, "int8": 1}
"""Formats that it has on a CPU, and bytes of a weight."""
GET = "pip install ctranslate2"


def ctranslate2_sides(
    config: ArmdConfig, batch: int, *, length: int, passes: int
) -> dict[str, Side]:
    """CTranslate2 writing `batch` texts of `length` tokens at a time, sampling from the whole
    vocabulary as we do. Empty, with a line, where it is not installed."""
    if importlib.util.find_spec("ctranslate2") is None:
        print(f"CTranslate2 is not timed: {GET}")
        return {}
    if config.d_head * config.n_heads != config.d_model:
        print("CTranslate2 is not timed: its heads together are as wide as a row")
        return {}
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder), config)
        for kind in KINDS:
            decoder = CTranslate2(folder, kind, config, length, batch)
            made[f"CTranslate2 {kind}"] = decoder.side(passes)
    return made


def write_random(folder: Path, config: ArmdConfig) -> None:
    """A model in CTranslate2's own format; it is rounded when it is loaded."""
    specs: Any = importlib.import_module("ctranslate2.specs")
    shared = importlib.import_module("ctranslate2.specs.common_spec")
    grouped = None if config.n_kv_heads == config.n_heads else config.n_kv_heads
    spec = specs.TransformerDecoderModelSpec.from_config(
        config.n_layers,
        config.n_heads,
        activation=shared.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        num_heads_kv=grouped,
    )
    random = np.random.default_rng(0)
    d, ff, kv = config.d_model, config.d_ff, config.n_kv_heads * config.d_head

    def matrix(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32) * np.float32(0.02)

    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = decoder.projection.weight = matrix(config.vocab_size, d)
    norms = [decoder.layer_norm]
    for layer in decoder.layer:
        norms += [layer.self_attention.layer_norm, layer.ffn.layer_norm]
        layer.self_attention.linear[0].weight = matrix(d + 2 * kv, d)
        layer.self_attention.linear[1].weight = matrix(d, d)
        layer.ffn.linear_0.weight, layer.ffn.linear_0_noact.weight = matrix(ff, d), matrix(ff, d)
        layer.ffn.linear_1.weight = matrix(d, ff)
    for norm in norms:
        norm.gamma = np.ones(d, np.float32)
    names = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(config.vocab_size - 3))]
    spec.register_vocabulary(names)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = names[:3]
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.save(str(folder))


class CTranslate2:
    """`batch` texts of `length` tokens. Their state at some depth is that of a static prompt, which
    it keeps, so that the tokens after it are timed alone."""

    def __init__(self, folder: str, kind: str, config: ArmdConfig, length: int, batch: int) -> None:
        c: Any = importlib.import_module("ctranslate2")
        threads = torch.get_num_threads()
        self.generator = c.Generator(folder, compute_type=kind, intra_threads=threads)
        self.length, self.batch = length, batch
        layer = 2 * config.d_model * (config.d_model + config.n_kv_heads * config.d_head)
        numbers = config.n_layers * (layer + 3 * config.d_model * config.d_ff)
        self.bytes = (numbers + config.vocab_size * config.d_model) * KINDS[kind]

    def write(self, depth: int, count: int) -> None:
        """`count` tokens of every text behind a prompt of `depth` tokens."""
        self.generator.generate_batch(
            [["<s>"]] * self.batch,
            static_prompt=["t0"] * depth,
            max_length=count,
            min_length=count,
            sampling_topk=0,
            include_prompt_in_result=False,
        )

    def side(self, passes: int) -> Side:
        each = min(passes, self.length // 10) or self.length - 1
        depths = [round(share * (self.length - each - 1)) for share in DEPTHS] if passes else [1]

        def run() -> float:
            seconds = 0.0
            for depth in depths:
                self.write(depth, 1)  # now the state of the prompt is there
                seconds += timed(lambda: self.write(depth, each), torch.device("cpu"))  # noqa: B023
            return seconds

        return Side(
            run=run,
            calls=self.length,
            scale=self.length / (each * len(depths)),
            bytes_a_call=self.bytes,
            measured=f"{each * len(depths)} calls" if passes else "whole",
            peak=lambda: None,
        )
