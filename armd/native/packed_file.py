"""A folder of quantised weights: panels as the kernels read them, so that loading packs nothing.

model.safetensors holds panels (bytes) and the few weights that stay float; quantized.json says how
they are laid out and what the rounding costs. The file is mapped, and copied once into huge pages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ..errors import ArmdError
from ..model.configuration_armd import ArmdConfig
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Tensor
from ..runtime.atomic_files import read_text
from ..runtime.tensor_files import write_tensors
from .huge_pages import Arena
from .library import library
from .linear import BITS, SkinnyLinear
from .packed import KINDS, FastLM, assemble, format_of
from .quantize import GROUP, PANEL, panel_bytes

FACTS, WEIGHTS = "quantized.json", "model.safetensors"
VERSION = 1
LAYOUT = {"version": VERSION, "panel": PANEL, "group": GROUP, "scales": "bf16"}


def save_quantized(model: FastLM, folder: Path, quality: dict[str, Any]) -> None:
    """Write the weights, config.json and quantized.json into a folder that is there."""
    tensors = {name: tensor for name, tensor in model.state_dict().items() if tensor is not None}
    if model.config.tie_word_embeddings:
        tensors = {k: v for k, v in tensors.items() if not k.startswith("embedding.")}
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
    facts = {
        **LAYOUT,
        "weights": model.weights,
        "kept": list(model.kept),
        "float_rows": cast(SkinnyLinear, model.head).float_rows,
        "quality": quality,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    model.config.architectures = [ArmdLM.__name__]
    model.config.save_pretrained(str(folder))


def read_facts(folder: Path) -> dict[str, Any]:
    """What quantized.json says, if it is a layout that is known here."""
    try:
        facts = json.loads(read_text(folder / FACTS))
        weights, float_rows = facts["weights"], facts["float_rows"]
        kept = tuple(facts.get("kept", ()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ArmdError(f"{folder / FACTS} is damaged; quantize the model again") from None
    if {name: facts.get(name) for name in LAYOUT} != LAYOUT or not (
        weights in BITS and set(kept) <= set(KINDS)
    ):
        raise ArmdError(
            f"{folder} was quantized by another version of armd (layout {facts.get('version')}, "
            f"here {VERSION}); quantize the model again"
        )
    return {**facts, "float_rows": bool(float_rows), "kept": kept}


def load_quantized(folder: Path) -> ArmdLM:
    """The packed model of such a folder."""
    from safetensors import SafetensorError, safe_open

    facts = read_facts(folder)
    if library() is None:
        raise ArmdError(
            f"{folder} holds {facts['weights']} weights, which need a C compiler (cc or gcc); "
            "install one, or use the model that it was made of"
        )
    config = ArmdConfig.from_pretrained(str(folder))
    arena, tensors = Arena(), {}
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - no dict
                tensors[name] = arena.copy(file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise ArmdError(f"{folder} is damaged ({error}); quantize the model again") from None
    try:
        return _assembled(config, tensors, facts)
    except (KeyError, ValueError, RuntimeError) as error:
        why = str(error).splitlines()[-1].strip()[:160]
        raise ArmdError(f"{folder} does not fit its config.json ({why})") from None


def _assembled(config: ArmdConfig, tensors: dict[str, Tensor], facts: dict[str, Any]) -> ArmdLM:
    for name, tensor in tensors.items():  # C takes them for what it expects
        if tensor.dtype != (torch.uint8 if name.endswith(".panels") else torch.float32):
            raise ValueError(f"{name} is of {tensor.dtype}")
    with torch.device("meta"):
        shell = ArmdLM(config)

    def make(name: str, weight: Tensor, bias: nn.Parameter | None) -> SkinnyLinear:
        outputs, depth = weight.shape
        panels, own = tensors[f"{name}.panels"], format_of(name, facts["weights"], facts["kept"])
        shape = (-(-outputs // PANEL), panel_bytes(depth, BITS[own]))
        if tuple(panels.shape) != shape:
            raise ValueError(f"{name} has other panels than {shape}")
        return SkinnyLinear.of_panels(
            panels, bias, (outputs, depth), weights=own, float_rows=facts["float_rows"]
        )

    fast = assemble(shell, make, packed_embedding=True, kept=facts["kept"])
    if config.tie_word_embeddings:
        tensors["embedding.source.panels"] = tensors["head.panels"]
    fast.load_state_dict(tensors, assign=True)
    for weight in fast.parameters():
        weight.requires_grad_(False)
    return fast.eval()
