"""Adapters beside the linear layers of a model that learns: put there, filled, switched off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..convert.adapter import LINEARS, Merging, apply_adapter, from_peft, lora_config
from ..convert.layout import is_new
from ..model.eval_mode import without_dropout


def with_adapters(model: Any, rank: int, alpha: int, start: Path | None = None) -> None:
    """Put adapters beside the linear layers, new ones or those of a folder; they and the new
    weights learn, the rest is fixed."""
    from peft import inject_adapter_in_model

    if start is None:
        inject_adapter_in_model(lora_config(rank, alpha), model)
    else:
        Merging(start).check_shapes({n: tuple(w.shape) for n, w in model.named_parameters()})
        apply_adapter(model, start)
    for name, weight in model.named_parameters():
        weight.requires_grad_(".lora_" in name or (is_new(name) and name != "bos"))


def with_exact_adapters(model: Any, rank: int, alpha: int, start: Path | None = None) -> None:
    """The same, of adapters that only rows out of order take."""
    for layer in model.layers:
        for name in LINEARS:
            getattr(layer, name).add_adapter(rank)
    model.config.adapter_rank = rank
    named = dict(model.named_parameters())
    if start is not None:
        found = Merging(start)
        found.check_shapes({name: tuple(weight.shape) for name, weight in named.items()})
        low = found.added or from_peft(found.low, found.scale)
        with torch.no_grad():
            for name, tensor in (low | found.new).items():
                named[name].copy_(tensor)
    for name, weight in named.items():
        weight.requires_grad_(is_new(name) and name != "bos")


@contextlib.contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Inside, the model is its source, left to right."""
    layers = [m for m in model.modules() if hasattr(m, "lora_A")]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        with without_dropout(model):
            yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight.requires_grad_(True)
