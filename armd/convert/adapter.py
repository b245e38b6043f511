"""Adapters: low-rank changes to a model's linear layers, as peft writes them, and the few weights
that the source did not have. Which model is it for? Its checksum says so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ArmdError
from .layout import is_new
from .source import read_json

if TYPE_CHECKING:
    from ..model.shapes import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NEW, FACTS = "new_weights.safetensors", "armd_adapter.json"
LINEARS = ("query", "key_value", "out", "gate_up", "down")
_PREFIX = "base_model.model."


class Fingerprint:
    """The checksum of a model, but for the weights its source did not have; tensors may come in
    any order, from any number of files."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        if is_new(name):
            return
        data = tensor.contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.sha256(memoryview(data.numpy())).hexdigest()  # type: ignore[arg-type]
        self.lines[name] = f"{name} {tuple(tensor.shape)} {tensor.dtype} {digest}"

    def value(self) -> str:
        lines = "\n".join(self.lines[name] for name in sorted(self.lines))
        return hashlib.sha256(lines.encode()).hexdigest()


def fingerprint(folder: Path) -> str:
    """The checksum of the model in a folder."""
    found = Fingerprint()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no dict
                if not is_new(name):
                    found.add(name, opened.get_tensor(name))
    return found.value()


class Merging:
    """An adapter added to a model's tensors as they pass by, each checked against its base."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, Fingerprint()
        config = read_json(folder / CONFIG, str(folder))
        self.facts = read_json(folder / FACTS, str(folder))
        self.scale = float(config["lora_alpha"]) / float(config["r"])
        self.low = read_tensors(folder / WEIGHTS)
        self.new = read_tensors(folder / NEW)

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        self.seen.add(name, tensor)
        if name in self.new:
            return self.new[name].to(tensor.dtype)
        module = _PREFIX + name.removesuffix(".weight")
        down, up = (self.low.get(f"{module}.lora_{side}.weight") for side in "AB")
        if down is None or up is None:
            return tensor
        if up.shape[0] != tensor.shape[0] or down.shape[1] != tensor.shape[1]:
            self.refuse()
        return (tensor.float() + self.scale * (up.float() @ down.float())).to(tensor.dtype)

    def check_base(self) -> None:
        """Raise unless what passed by was the model that the adapter was made for."""
        if self.seen.value() != self.facts.get("base"):
            self.refuse()

    def refuse(self) -> None:
        name = self.facts.get("base_name", "another model")
        raise ArmdError(
            f"the adapter in {self.folder} was made for {name}, not for this model (its checksum "
            "is another); use that model, or adapt this one: armd adapt"
        )


def read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ArmdError(f"no {file.name} in {file.parent}; give an adapter's folder") from None
    except (OSError, SafetensorError) as error:
        raise ArmdError(f"{file} is damaged ({error}); copy it again") from None


def lora_config(rank: int, alpha: int) -> Any:
    """peft's description of an adapter on all linear layers."""
    try:
        from peft import LoraConfig
    except ImportError:
        raise ArmdError("adapters need the package peft: pip install 'armd[adapt]'") from None
    return LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=list(LINEARS))


def write_adapter(
    folder: Path,
    weights: Mapping[str, Tensor],
    *,
    rank: int,
    alpha: int,
    base: str,
    base_name: str,
    dtype: torch.dtype,
) -> None:
    """The standard folder. `weights`: trained tensors by our names, those of peft with its
    ".default"."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = lora_config(rank, alpha)
    config.base_model_name_or_path = base_name
    config.inference_mode = True
    config.save_pretrained(str(folder))
    low, new = {}, {}
    for name, tensor in weights.items():
        kept = tensor.detach().to(dtype).contiguous()
        if ".lora_" in name:
            low[_PREFIX + name.replace(".default.", ".")] = kept
        else:
            new[name] = tensor.detach().float().contiguous()
    save_file(low, folder / WEIGHTS, {"format": "pt"})
    save_file(new, folder / NEW, {"format": "pt"})
    facts = {"base": base, "base_name": base_name}
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def apply_adapter(model: Any, folder: Path) -> Any:
    """The model with an adapter beside its weights, not merged: peft's layers, put in place."""
    from peft import inject_adapter_in_model, set_peft_model_state_dict

    config = read_json(folder / CONFIG, str(folder))
    inject_adapter_in_model(lora_config(config["r"], config["lora_alpha"]), model)
    low = {n.removeprefix(_PREFIX): t.float() for n, t in read_tensors(folder / WEIGHTS).items()}
    set_peft_model_state_dict(model, low)
    with torch.no_grad():
        named = dict(model.named_parameters())
        for name, tensor in read_tensors(folder / NEW).items():
            named[name].copy_(tensor)
    return model
