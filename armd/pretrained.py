"""Saved models: which folder does a path name, and what is in it?"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .baselines import MODELS, model_class
from .errors import ArmdError
from .model.folder_check import check_link
from .runtime.atomic_files import SUMS, damaged_files, hash_file, read_text
from .runtime.atomic_folders import unexchanged
from .runtime.device import find_device
from .runtime.memory import check_memory

if TYPE_CHECKING:
    from .data.tokenizer import TextTokenizer

OURS = ("armd", "armd-baseline")
COUNTS = (
    *("vocab_size", "d_model", "n_layers", "n_two_stream", "n_heads", "n_kv_heads", "d_head"),
    *("max_length", "d_ff", "d_pe", "right_offset", "adapter_rank"),
    *("block_size", "diffusion_steps", "d_embedding", "segment", "memory"),
)
LARGEST = 1e300
MOST, MOST_CONFIG = 1 << 24, 1 << 24
"""The highest of these counts, and the bytes of a config.json."""
NOT_OURS = (
    *("attn_implementation", "experts_implementation", "quantization_config"),
    *("num_labels", "id2label", "label2id"),
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    "max_position_embeddings",
)
"""Entries that are never saved; the last are other names of our sizes, which nobody would check."""
DTYPES = (None, "float64", "float32", "float16", "bfloat16")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
TOKENIZER_FILES += ("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")
QUANTIZED = "quantized.json"
"""In a folder of quantised weights; see native/packed_file.py."""
# words that name a model -> (module of armd, function) that gives its folder
NAMED = {"smollm2": ("convert.smollm2", "ready_folder")}


def is_named(path: Path | str) -> bool:
    """Whether this is a word for a model, and not a folder of that name."""
    return str(path) in NAMED and not Path(path).exists()


def is_quantized(folder: Path) -> bool:
    return (folder / QUANTIZED).is_file()


def model_folder(path: Path | str) -> Path:
    """The save_pretrained folder that a path names: itself, the export of a training run, or the
    one of a model that has a word of its own."""
    if is_named(path):
        module, function = NAMED[str(path)]
        return getattr(importlib.import_module(f"armd.{module}"), function)()
    path = Path(path)
    if not path.exists():
        raise ArmdError(f"no folder {path}; give a training run or a folder of save_pretrained")
    if (path / "export").is_symlink():
        check_link(path / "export", path.resolve())
    for folder in (path / "export", path):
        if unexchanged(folder, lambda folder=folder: _holds_model(folder)):
            return folder
    raise ArmdError(
        f"no model in {path}: expected config.json and model.safetensors, there or in export/"
    )


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def load_model(path: Path | str, *, device: str = "cpu") -> Any:
    """The model of a training run or of a save_pretrained folder, ours or a baseline (an ArmdLM or
    a Baseline), in evaluation mode."""
    folder = model_folder(path)
    return unexchanged(folder, lambda: _load_folder(folder, device))


def check_ours(folder: Path) -> str:
    """Raise unless a folder holds a whole model of armd; which of them it is."""
    kind, name = saved_kind(folder)
    if kind not in OURS:
        raise ArmdError(f"{folder} is a checkpoint of '{kind}', not of armd; convert it first")
    check_saved(folder)
    return name


def _load_folder(folder: Path, device: str) -> Any:
    from transformers.utils import logging

    name = check_ours(folder)
    where, shown = find_device(device), logging.is_progress_bar_enabled()
    if is_quantized(folder):
        return load_packed(folder, name, where)
    # 16 bits are a way to save them: a CPU computes in 32, and so the C kernels do
    dtype = "float32" if where.type == "cpu" else "auto"
    logging.disable_progress_bar()
    try:
        return model_class(name).from_pretrained(folder, dtype=dtype).eval().to(where)
    finally:
        if shown:
            logging.enable_progress_bar()


def in_memory(model: Any) -> Any:
    """The model with all its weights in memory. As loaded they are parts of the mapped file: who
    writes a new one into it would change them, or end the process."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.is_cpu:
            weight.data = weight.data.clone()
    return model


def load_packed(folder: Path, name: str, device: Any) -> Any:
    """The model of a folder that `armd quantize` wrote."""
    from .native.packed_file import load_quantized

    if name != "armd" or device.type != "cpu":
        raise ArmdError(f"{folder} is quantized: that is for models of armd on a CPU alone")
    return load_quantized(folder)


def saved_kind(folder: Path) -> tuple[str, str]:
    """The model_type of what is saved there, and its name among ours and the baselines."""
    config = read_config(folder)
    kind, name = config.get("model_type"), config.get("model", "armd")
    if not isinstance(kind, str) or not isinstance(name, str):
        raise _damaged(folder, "it names no model_type")
    if kind in OURS and name not in MODELS:
        raise _damaged(folder, f"there is no model '{name[:40]}'")
    return kind, name


def read_config(folder: Path) -> dict[str, Any]:
    """The table in config.json."""
    path = folder / "config.json"
    try:
        if path.stat().st_size > MOST_CONFIG:
            raise ValueError("too large")
        config = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(folder, str(error).splitlines()[0]) from None
    if not isinstance(config, dict):
        raise _damaged(folder, "it holds no table")
    return config


def _damaged(folder: Path, why: str) -> ArmdError:
    return ArmdError(f"{folder / 'config.json'} is damaged ({why}); copy or export it again")


def check_saved(folder: Path) -> None:
    """Raise if a file of the folder has another checksum than it was exported with, where it has
    checksums, and if its sizes cannot be."""
    check_sizes(folder)
    if wrong := damaged_files(folder):
        raise ArmdError(
            f"{folder} is damaged: {wrong[0]}; copy or export it again (if you changed it on "
            f"purpose, remove {SUMS} there)"
        )


def check_sizes(folder: Path) -> None:
    """Raise, before anything is allocated, if the sizes in config.json are no numbers, or ask for
    more than the weights on disk hold, or the weights for more memory than there is."""
    from safetensors import SafetensorError, safe_open

    from .model.strict_model import check_weight_files

    check_weight_files(folder)
    config, elements, tensors = read_config(folder), 0, 0
    check_numbers(folder, config)
    try:
        for file in folder.glob("*.safetensors"):
            if not os.access(file, os.R_OK):
                raise ArmdError(f"{file} may not be read; change its permissions: chmod u+r")
            with safe_open(file, "pt") as opened:
                for key in opened.keys():  # noqa: SIM118 - no dict
                    part = opened.get_slice(key)
                    # a byte of quantised weights holds two at most
                    elements += prod(part.get_shape()) * (2 if part.get_dtype() == "U8" else 1)
                    tensors += 1
    except (OSError, SafetensorError) as error:
        raise ArmdError(f"{folder} is damaged ({error}); copy or export it again") from None
    width, layers = config.get("d_model", 768), config.get("n_layers", 12)
    asked = {
        "vocab_size": (config.get("d_embedding") or width) * config.get("vocab_size", 50257),
        "n_layers": width * layers,
        "d_ff": width * layers * (config.get("d_ff") or 1),
        "d_pe": config.get("d_pe") or 1,
        "n_heads": width * (config.get("d_head") or 1) * config.get("n_heads", 1),
    }
    for name, count in asked.items():
        if count > elements or layers > tensors:
            raise ArmdError(
                f"{folder} does not fit its own config.json: {name} asks for more weights than the "
                f"{elements:,} on disk; copy or export it again"
            )
    check_memory(4 * elements, f"the model in {folder}", "use a machine with more")


def check_numbers(folder: Path, config: dict[str, Any]) -> None:
    """Raise unless the fields of config.json that are numbers are numbers, and possible ones, and
    there are none by which transformers does more than make our model."""
    for name in config:
        if name.lstrip("_").startswith(NOT_OURS):
            raise _damaged(folder, f"a model of armd has no {name[:40]}")
    if any(config.get(name) not in DTYPES for name in ("dtype", "torch_dtype")):
        raise _damaged(folder, "dtype is no kind of floating-point numbers")
    for name in COUNTS:
        value = config.get(name, 1)
        if value is None and name in ("d_ff", "d_pe", "d_head", "n_two_stream", "n_kv_heads"):
            continue
        if type(value) is not int or not 0 <= value <= MOST:
            raise _damaged(folder, f"{name} is no number between 0 and {MOST}")
    for name in ("dropout", "rope_base", "norm_eps", "init_std", "pe_std"):
        value = config.get(name, 0.0)
        if value is None and name == "pe_std":
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -LARGEST <= value <= LARGEST  # NaN lies nowhere
        ):
            raise _damaged(folder, f"{name} is no finite number")


def load_tokenizer(path: Path | str, *, vocab_size: int | None = None) -> TextTokenizer:
    """The tokenizer saved beside the model; with `vocab_size`, the model's, it must fit."""
    from .data.tokenizer import find_tokenizer

    folder = model_folder(path)
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        raise ArmdError(
            f"no tokenizer in {folder}; copy the files of the one it was trained with there"
        )
    found = unexchanged(folder, lambda: find_tokenizer(str(folder), (), rows=False))
    if vocab_size is not None and found.vocab_size > vocab_size:
        raise ArmdError(
            f"the tokenizer in {folder} writes {found.vocab_size} tokens, but the model knows "
            f"{vocab_size}; put the model's own there (an EOS that it does not name counts, too)"
        )
    return found


def model_digest(path: Path | str) -> str:
    """Which model this is: its weights, then its config and tokenizer, by their checksums."""
    folder = model_folder(path)
    weights = checked_sums(folder, sorted(folder.glob("*.safetensors")))
    files = [folder / name for name in ("config.json", QUANTIZED, *TOKENIZER_FILES)]
    files = [file for file in files if file.is_file()]
    sums = checked_sums(folder, files)
    settings = [f"{file.name} {found}" for file, found in zip(files, sums, strict=True)]
    parts = ("".join(weights), "\n".join(settings))
    return "-".join(hashlib.sha256(part.encode()).hexdigest()[:16] for part in parts)


def checked_sums(folder: Path, files: list[Path]) -> list[str]:
    """Checksums of files of a saved model of ours: those beside it, which were compared when it was
    loaded (check_saved), or where a file has none, its own."""
    try:
        sums = dict(json.loads(read_text(folder / SUMS)))
    except (OSError, ValueError, TypeError, RecursionError):
        sums = {}
    return [str(sums.get(file.name) or hash_file(file)) for file in files]
