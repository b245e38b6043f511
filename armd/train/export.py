"""Export: the weights of a checkpoint as a folder that `pretrained.load_model` reads."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..data.dataset import Dataset
from ..model.configuration_armd import ArmdConfig
from ..runtime.atomic_files import damaged_files, write_sums
from ..runtime.atomic_folders import replaced_folder
from ..runtime.lock import Check, unchecked
from ..runtime.tensor_files import write_tensors
from ..saved_folder import finish_folder
from .recipe import Recipe
from .run_folder import parse_rows
from .saved_checkpoint import Checkpoint


def export(
    checkpoint: Checkpoint,
    config: ArmdConfig,
    files: Mapping[str, bytes],
    out: Path,
    *,
    about: Mapping[str, object] | None = None,
    losses: Mapping[str, float] | None = None,
    losses_step: int | None = None,
    check: Check = unchecked,
) -> None:
    """Write model.safetensors, these files (the tokenizer's) and what finish_folder adds, replacing
    what is in `out`, unless `check` raises. Averaged weights are taken where the run keeps them."""
    weights = checkpoint.weights("ema/" if checkpoint.facts.get("ema") else "model/")
    with replaced_folder(out, check) as aside:
        for name, content in files.items():
            (aside / name).write_bytes(content)
        facts = {"format": "pt", "step": str(checkpoint.step)}
        write_tensors(aside / "model.safetensors", weights, facts)
        check()
        count = sum(weight.numel() for weight in weights.values())
        measured = {"losses": losses, "losses_step": losses_step}
        finish_folder(aside, config, weights=count, about=about, **measured)
        write_sums(aside)


def card_facts(recipe: Recipe, dataset: Dataset, checkpoint: Checkpoint) -> dict[str, Any]:
    """What the model card says of a run; the losses may be of an earlier step."""
    tokens = dataset.manifest["splits"]["train"]["tokens"]
    data = f"{dataset.folder.name}, {tokens:,} tokens"
    rows = parse_rows(checkpoint.metrics() or "")[0]
    last = next((row for row in rows[::-1] if "heldout" in row), {})
    return {
        "about": {"data": data, "preset": recipe.preset, "step": f"{checkpoint.step:,}"},
        "losses": last.get("heldout", {}),
        "losses_step": last.get("step"),
    }


def exported_step(out: Path, *, tell: bool = False) -> int | None:
    """Of which step's weights an export is; None where there is no whole one. `tell`: say what is
    wrong with one that is damaged."""
    wrong = damaged_files(out)
    if wrong and tell:
        warnings.warn(f"{out} is damaged ({wrong[0]}); written anew", stacklevel=2)
    return told_step(out) if wrong == [] else None


def told_step(out: Path) -> int | None:
    """The same, of an export whose files are known to be whole, or are not worth reading."""
    try:
        with safe_open(out / "model.safetensors", "pt") as file:
            return int((file.metadata() or {})["step"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
