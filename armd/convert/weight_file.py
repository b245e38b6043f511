"""A safetensors file written one tensor at a time, so that no model is ever in memory whole."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArmdError
from ..runtime.atomic_folders import refuse_full

if TYPE_CHECKING:
    from ..model.shapes import Tensor

WEIGHTS = "model.safetensors"
SPARE = 64 << 20
"""The most bytes for what a folder holds beside weights: code, and a tokenizer, which is small
where the model is."""
_CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def check_disk(folder: Path, size: int) -> None:
    """Raise, before any work, unless `folder` (or the first parent that exists) has the room."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free, needed = shutil.disk_usage(there).free, size + min(SPARE, 2 * size + (1 << 20))
    if free < needed:
        raise ArmdError(
            f"{folder} needs {needed / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are free there; "
            "free some space or choose another folder"
        )


def check_room(out: Path, shapes: Iterable[tuple[int, ...]], dtype: torch.dtype) -> None:
    """Raise, with nothing written, where the folder `out` cannot take a model of these weights."""
    refuse_full(out)
    count = sum(torch.Size(shape).numel() for shape in shapes)
    check_disk(out, int(count * dtype.itemsize * 1.02))


def write_one_by_one(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    make: Callable[[str], Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the tensors that `make` gives, by name; each is let go before the next is made."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    place = 0
    for name, shape in shapes.items():
        size = torch.Size(shape).numel() * dtype.itemsize
        header[name] = {
            "dtype": _CODES[dtype],
            "shape": list(shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            tensor = make(name).to(dtype).contiguous()
            if tuple(tensor.shape) != tuple(shape):
                raise ArmdError(f"{name} has the shape {tuple(tensor.shape)}, not {tuple(shape)}")
            file.write(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # type: ignore
        file.flush()
        os.fsync(file.fileno())
