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
from ..model.folder_check import check_inside
from ..runtime.atomic_files import damaged_files, write_sums
from ..runtime.tensor_files import write_tensors
from ..runtime.weight_files import weight_files
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
    for file in weight_files(folder):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no dict
                if not is_new(name):
                    found.add(name, opened.get_tensor(name))
    return found.value()


class Merging:
    """An adapter added to a model's tensors as they pass by, each checked against its base. An
    exact one, which only rows out of order take, stays beside them, in `added`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, Fingerprint()
        rank, alpha = read_sizes(folder)
        self.facts, self.scale = read_facts(folder), alpha / rank
        self.low = read_tensors(folder / WEIGHTS)
        self.new = read_tensors(folder / NEW)
        found = (self.low | self.new).items()
        self.shapes, self.factors = {name: tuple(t.shape) for name, t in found}, rank
        self.added: dict[str, Tensor] = {}
        self.rank = rank if self.facts.get("exact") else 0
        """config.adapter_rank of the result."""
        if self.rank and all(len(t.shape) == 2 for t in self.low.values()):
            self.added, self.low = from_peft(self.low, self.scale), {}

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """The shapes must have been checked."""
        self.seen.add(name, tensor)
        if name in self.new:
            return self.new[name].to(tensor.dtype)
        module = _PREFIX + name.removesuffix(".weight")
        down, up = (self.low.get(f"{module}.lora_{side}.weight") for side in "AB")
        if down is None or up is None:
            return tensor
        return (tensor.float() + self.scale * (up.float() @ down.float())).to(tensor.dtype)

    def check_shapes(self, model: Mapping[str, tuple[int, ...]]) -> None:
        """Raise unless each tensor has its place in a model of these shapes, each linear layer its
        factors, and all are numbers."""
        wanted: dict[str, tuple[int, ...]] = {}
        for name, shape in model.items():
            module = name.removesuffix(".weight")
            if module.rsplit(".", 1)[-1] in LINEARS:
                wanted[f"{_PREFIX}{module}.lora_A.weight"] = (self.factors, shape[1])
                wanted[f"{_PREFIX}{module}.lora_B.weight"] = (shape[0], self.factors)
            elif is_new(name) and name != "bos" and ".lora_" not in name:
                wanted[name] = tuple(shape)
        if self.shapes != wanted:
            self.refuse()
        for name, tensor in (self.low | self.added | self.new).items():
            if not tensor.is_floating_point() or not bool(tensor.float().isfinite().all()):
                raise damaged(self.folder, f"{name} holds other things than numbers")

    def check_base(self) -> None:
        """Raise unless what passed by was the model that the adapter was made for."""
        if self.seen.value() != self.facts.get("base"):
            self.refuse()

    def refuse(self) -> None:
        name = self.facts.get("base_name", "another model")
        raise ArmdError(
            f"the adapter in {self.folder} was made for {name}, not for this model (its checksum "
            "is another, or its tensors do not fit); use that model, or adapt this one: armd adapt"
        )


def from_peft(low: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The factors of an adapter under our names, as AdaptedLinear has them."""
    found = {}
    for name, tensor in low.items():
        name = name.removeprefix(_PREFIX)
        if name.endswith(".lora_A.weight"):
            found[name.removesuffix("A.weight") + "a"] = tensor.float().contiguous()
        else:
            b = tensor.float().mT * scale
            found[name.removesuffix("B.weight") + "b"] = b.contiguous()
    return found


def to_peft(name: str, tensor: Tensor, scale: float) -> tuple[str, Tensor]:
    """One of our factors, or one of peft's own, under the name that peft writes."""
    if name.endswith(".lora_a"):
        return _PREFIX + name.removesuffix("a") + "A.weight", tensor
    if name.endswith(".lora_b"):
        return _PREFIX + name.removesuffix("b") + "B.weight", tensor.mT / scale
    return _PREFIX + name.replace(".default.", "."), tensor


def damaged(folder: Path, why: str) -> ArmdError:
    return ArmdError(f"the adapter in {folder} is damaged ({why}); copy it again")


def read_sizes(folder: Path) -> tuple[int, float]:
    """Rank and alpha of the adapter in a folder, if its files are as they were written."""
    check_inside(folder)
    config = read_json(folder / CONFIG, str(folder))
    if wrong := damaged_files(folder):
        raise damaged(folder, wrong[0])
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= 2**16:
        raise damaged(folder, "its rank r is no number above 0")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= 2**24:
        raise damaged(folder, "its lora_alpha is no number")
    return rank, alpha


def read_facts(folder: Path) -> dict[str, Any]:
    """What armd adapt says of its adapter."""
    if not (folder / FACTS).is_file():
        raise ArmdError(
            f"{folder} has no {FACTS}: it is no adapter that armd adapt wrote; name one"
        )
    return read_json(folder / FACTS, str(folder))


def read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ArmdError(f"no {file.name} in {file.parent}; give an adapter's folder") from None
    except (OSError, SafetensorError) as error:
        raise ArmdError(f"{file} is damaged ({error}); copy it again") from None


def lora_config(rank: int, alpha: float) -> Any:
    """peft's description of an adapter on all linear layers."""
    try:
        from peft import LoraConfig
    except ImportError:
        raise ArmdError("adapters need the package peft: pip install 'armd[adapt]'") from None
    more: dict[str, Any] = {"lora_alpha": alpha, "target_modules": list(LINEARS)}
    return LoraConfig(r=rank, lora_dropout=0.0, **more)


def write_adapter(
    folder: Path,
    weights: Mapping[str, Tensor],
    *,
    rank: int,
    alpha: int,
    base: str,
    base_name: str,
    right_offset: int,
    exact: bool,
    dtype: torch.dtype,
) -> None:
    """Fill the standard folder, an empty one. `weights`: trained tensors by our names, those of
    peft with its ".default"."""
    config = lora_config(rank, alpha)
    config.base_model_name_or_path = base_name
    config.inference_mode = True
    config.save_pretrained(str(folder))
    config = read_json(folder / CONFIG, str(folder))
    config["target_modules"] = sorted(
        config["target_modules"]
    )  # a set: its order is another each time
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    low, new = {}, {}
    for name, tensor in weights.items():
        if ".lora_" in name:
            theirs, kept = to_peft(name, tensor.detach(), alpha / rank)
            low[theirs] = kept.to(dtype)
        else:
            new[name] = tensor.detach().float()
    for file, tensors in ((WEIGHTS, low), (NEW, new)):
        on_cpu = {name: tensors[name].cpu() for name in sorted(tensors)}
        write_tensors(folder / file, on_cpu, {"format": "pt"})
    facts = {"base": base, "base_name": base_name, "right_offset": right_offset, "exact": exact}
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    write_sums(folder)


def right_offset_of(folder: Path) -> int:
    """config.right_offset of the model that an adapter was made with."""
    offset = read_facts(folder).get("right_offset", 0)
    if type(offset) is not int or not 0 <= offset <= 2**24:
        raise damaged(folder, "its right_offset is no number of positions")
    return offset


def apply_adapter(model: Any, folder: Path) -> Any:
    """The model with an adapter beside its weights, not merged: peft's layers, put in place."""
    from peft import inject_adapter_in_model, set_peft_model_state_dict

    inject_adapter_in_model(lora_config(*read_sizes(folder)), model)
    low = {n.removeprefix(_PREFIX): t.float() for n, t in read_tensors(folder / WEIGHTS).items()}
    set_peft_model_state_dict(model, low)
    with torch.no_grad():
        named = dict(model.named_parameters())
        for name, tensor in read_tensors(folder / NEW).items():
            named[name].copy_(tensor)
    return model
