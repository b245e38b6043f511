"""Which files of a folder hold a model's weights? The ones that transformers would read: others may
be of an earlier version, or copies."""

import json
from pathlib import Path

from ..errors import ArmdError
from .atomic_files import SUMS

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
OF_WEIGHTS = (SUMS, ".safetensors", ".safetensors.index.json", ".gguf")
"""How the names of files end that hold weights or tell of them: no copies beside other weights."""


def weight_files(folder: Path) -> list[Path]:
    """One file, or those that the index names, or, where there is neither, all."""
    if (folder / ONE).is_file():
        return [folder / ONE]
    if not (folder / INDEX).is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values())
        files = sorted(folder / Path(name).name for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArmdError(f"{folder / INDEX} is damaged; copy {folder} again") from None
    if missing := [file for file in files if not file.is_file()]:
        raise ArmdError(f"{missing[0]} is missing, and {INDEX} names it; copy it again")
    return files
