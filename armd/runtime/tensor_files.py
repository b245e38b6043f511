"""Tensors on disk, in the safetensors format, hashed while they are written, so that loading can
tell whether each byte came back; nothing here is ever unpickled."""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..model.shapes import Tensor

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}
_CHUNK = 16 << 20


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Write CPU tensors as safetensors and return the sha256 of the file. Unlike the library's own
    writer it lets other threads run, so a checkpoint is written while the next step computes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    place = 0
    flat = {name: tensor.contiguous() for name, tensor in tensors.items()}
    for name, tensor in flat.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for data in (struct.pack("<Q", len(text)), text):
            digest.update(data)
            file.write(data)
        for tensor in flat.values():
            view = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
            for start in range(0, len(view), _CHUNK):
                digest.update(view[start : start + _CHUNK])
                file.write(view[start : start + _CHUNK])
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
