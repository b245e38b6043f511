"""Export: the weights of a checkpoint as a folder that `pretrained.load_model` reads."""

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import custom_object_save

from ..baselines import MODELS, name_of
from ..errors import ArmdError
from ..model.configuration_armd import ArmdConfig
from ..model.modeling_armd import ArmdLM
from ..runtime.atomic_files import damaged_files, put_folder, write_sums
from ..runtime.tensor_files import write_tensors
from .checkpoint import Checkpoint, open_checkpoint, steps_in

EXPORT, KEPT = "export", "exports"


def export(checkpoint: Checkpoint, config: ArmdConfig, tokenizer: Path, out: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer's files, replacing what is in `out`.
    Averaged weights are taken where the run keeps them."""
    weights = {}
    prefix = "ema/" if checkpoint.facts.get("ema") else "model/"
    for name, shape in checkpoint.shapes(prefix).items():
        weights[name.removeprefix(prefix)] = torch.empty(shape)
        checkpoint.read_rows(name, weights[name.removeprefix(prefix)], 0)
    aside = out.with_name(f".{out.name}.tmp")
    for left in (aside, out.with_name(f".{out.name}.old")):
        shutil.rmtree(left, ignore_errors=True)
    if tokenizer.is_dir():
        shutil.copytree(tokenizer, aside)
    else:
        aside.mkdir(parents=True)
    facts = {"format": "pt", "step": str(checkpoint.step)}
    write_tensors(aside / "model.safetensors", weights, facts)
    config.architectures = [MODELS[name_of(config)][1]]
    add_code(config, aside)
    config.save_pretrained(str(aside))
    write_sums(aside)
    put_folder(aside, out)


def add_code(config: ArmdConfig, folder: Path) -> None:
    """As save_pretrained does: our own model's code goes with it, so that it loads without armd."""
    if config.architectures == [ArmdLM.__name__]:
        with torch.device("meta"):
            shell = ArmdLM(config)
        custom_object_save(shell, folder, config=config)  # type: ignore[arg-type]


def exported_step(out: Path) -> int | None:
    """Of which step's weights an export is; None where there is no whole one."""
    if damaged_files(out) != []:
        return None
    try:
        with safe_open(out / "model.safetensors", "pt") as file:
            return int((file.metadata() or {})["step"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def best_checkpoint(run: Path) -> Checkpoint:
    """The checkpoint of a run with the least held-out loss."""
    folder = run / "checkpoints"
    found = [open_checkpoint(folder, step) for step in steps_in(folder)]
    if not found:
        raise ArmdError(f"{run} has no checkpoint yet")
    return min(found, key=lambda c: c.facts.get("heldout") or float("inf"))
