"""Whether weights changed, by their bits: optimizers may change them without a trace."""

from hashlib import blake2b

import torch

from ..model.shapes import Tensor
from .library import library


def checksum(weight: Tensor) -> int:
    """Of a tensor on the CPU."""
    flat, made = weight.detach().contiguous(), library()
    if made is not None:
        return made.checksum(flat.data_ptr(), flat.numel() * flat.element_size())
    flat = flat.flatten().clone(memory_format=torch.contiguous_format)  # one number may stride
    content = flat.view(torch.uint8).numpy()
    return int.from_bytes(blake2b(content.data, digest_size=8).digest(), "little")
