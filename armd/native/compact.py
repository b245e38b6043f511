"""float32 weights in 28 bits, without loss (compact.h): an eighth less to read from memory."""

import torch

from ..model.shapes import Float, Tensor
from .huge_pages import Arena
from .library import library
from .quantize import PANEL
from .structs import Matrix

CODE, LINE = 5, 64
"""Of the enum in gemm.h; bytes of a cache line."""
MOST = 5e-4
"""Share of weights that may be exceptions. Of normally distributed ones 1e-4 are; each costs about
as much as reading 150 weights."""
DEEPEST, LARGEST = 1 << 20, 1 << 31
"""Inputs, and weights, of which the places and numbers of exceptions fit."""


def compacted(
    weight: Float[Tensor, "n m"], arena: Arena | None = None
) -> tuple[Tensor, Tensor] | None:
    """Panels, and exceptions as 32-bit numbers; None where the machine or the weights do not
    suit."""
    outputs, depth = weight.shape
    if not library().has_compact() or depth >= DEEPEST or weight.numel() >= LARGEST:
        return None
    weight, shape = weight.contiguous(), (outputs, depth)
    starts = torch.empty(-(-outputs // PANEL) + 1, dtype=torch.int32)
    library().compact_count(weight.data_ptr(), *shape, starts.data_ptr())
    if int(starts[-1]) > MOST * weight.numel():
        return None
    exceptions = torch.cat([starts, starts.new_zeros(int(starts[-1]))])
    size, zeros = (len(starts) - 1, panel_bytes(depth)), arena.zeros if arena else torch.zeros
    panels = zeros(size, dtype=torch.uint8)
    places = (exceptions.data_ptr(), panels.data_ptr())
    library().compact_pack(weight.data_ptr(), *shape, *places)
    return panels, exceptions


def panel_bytes(depth: int) -> int:
    """Of one panel: two tables, then 112 bytes for each two inputs."""
    size = 2 * 64 + -(-depth // 2) * 7 * PANEL
    return size + -size % LINE


def unpacked(source: Matrix) -> Float[Tensor, "n m"]:
    """The weights of such a matrix."""
    weight = torch.empty(source.outputs, source.depth)
    library().compact_unpack(source, weight.data_ptr())
    return weight
