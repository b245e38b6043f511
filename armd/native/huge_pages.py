"""Memory in huge pages: a pass reads all weights and the whole cache, and with pages of 4 KiB the
processor looks up an address for every few hundred numbers."""

import mmap
from contextlib import suppress
from math import prod

import torch

from ..model.shapes import Tensor

PAGE = 2 << 20
LINE = 64


class Arena:
    """Zeroed tensors side by side in large mappings, for which huge pages are asked. A mapping is
    given back when the last tensor in it is gone."""

    def __init__(self, size: int = 32 * PAGE) -> None:
        """`size`: bytes of a mapping, where a tensor does not need a larger one."""
        self.size, self.left = size, torch.empty(0, dtype=torch.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        need = prod(shape) * dtype.itemsize
        if need == 0:
            return torch.zeros(shape, dtype=dtype)
        room = need + -need % LINE
        if room > len(self.left):
            self.left = mapping(max(self.size, room))
        part, self.left = self.left[:room], self.left[room:]
        return part[:need].view(dtype).view(shape)

    def copy(self, tensor: Tensor) -> Tensor:
        return self.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def mapping(size: int) -> Tensor:
    """Zeroed bytes, from a whole huge page on where the system maps them so."""
    size += -size % PAGE
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux
        return torch.zeros(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
