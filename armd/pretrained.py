"""Saved models: which folder does a path name, and what is in it?"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .baselines import model_class
from .errors import ArmdError
from .runtime.device import find_device

if TYPE_CHECKING:
    from .data.tokenizer import TextTokenizer

OURS = ("armd", "armd-baseline")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt")


# words that name a model -> (module of armd, function) that gives its folder
NAMED = {"smollm2": ("convert.smollm2", "ready_folder")}


def is_named(path: Path | str) -> bool:
    """Whether this is a word for a model, and not a folder of that name."""
    return str(path) in NAMED and not Path(path).exists()


def model_folder(path: Path | str) -> Path:
    """The save_pretrained folder that a path names: itself, the export of a training run, or the
    one of a model that has a word of its own."""
    if is_named(path):
        module, function = NAMED[str(path)]
        return getattr(importlib.import_module(f"armd.{module}"), function)()
    path = Path(path)
    if not path.exists():
        raise ArmdError(f"no folder {path}; give a training run or a folder of save_pretrained")
    for folder in (path / "export", path):
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return folder
    raise ArmdError(
        f"no model in {path}: expected config.json and model.safetensors, there or in export/"
    )


def load_model(path: Path | str, *, device: str = "cpu") -> Any:
    """The model of a training run or of a save_pretrained folder, ours or a rival (an ArmdLM or a
    Baseline), ready to be asked."""
    from transformers.utils import logging

    folder = model_folder(path)
    kind, name = saved_kind(folder)
    if kind not in OURS:
        raise ArmdError(f"{folder} is a checkpoint of '{kind}', not of armd; name an armd folder")
    where, shown = find_device(device), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return model_class(name).from_pretrained(folder).eval().to(where)
    finally:
        if shown:
            logging.enable_progress_bar()


def saved_kind(folder: Path) -> tuple[str, str]:
    """The model_type of what is saved there, and its name among ours and the rivals."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return config["model_type"], config.get("model", "armd")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArmdError(
            f"{folder / 'config.json'} is damaged or names no model_type; copy or export it again"
        ) from None


def load_tokenizer(path: Path | str, *, vocab_size: int | None = None) -> TextTokenizer:
    """The tokenizer saved beside the model; with `vocab_size`, the model's, it must fit."""
    from .data.tokenizer import find_tokenizer

    folder = model_folder(path)
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        raise ArmdError(
            f"no tokenizer in {folder}; copy the files of the one it was trained with there"
        )
    found = find_tokenizer(str(folder), (), rows=False)
    if vocab_size is not None and found.vocab_size > vocab_size:
        raise ArmdError(
            f"the tokenizer in {folder} writes {found.vocab_size} tokens, but the model knows "
            f"{vocab_size}; put the model's own tokenizer there"
        )
    return found
