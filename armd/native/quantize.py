"""8-bit and 4-bit weights: which scale each 32 inputs of an output get, and the panels of bytes
that quantized.c reads.

A weight is scale * value. Scales are bf16 numbers, so that C widens them by a shift; values are
rounded after the scale is. Eight bits: -127 .. 127, the scale from the largest weight. Four bits:
-8 .. 7, the scale with the least squared error, of many (search_scales.c)."""

import torch
from torch import nn

from ..errors import ArmdError
from ..model.shapes import Float, Int, Tensor
from .library import library

GROUP, PANEL = 32, 16
"""Inputs that share a scale; outputs of a panel."""
LINE = 64
"""Bytes: weights of a panel start at a whole cache line."""
CHUNK = 1 << 18
"""Groups that are rounded at once."""


def quantize(
    weight: Float[Tensor, "n m"], bits: int
) -> tuple[Int[Tensor, "n g 32"], Float[Tensor, "n g"]]:
    """Values, as int8, and the scale of each group; inputs are filled up with zeros."""
    weight = weight.detach().float()
    if not weight.isfinite().all():
        raise ArmdError(
            f"weights with NaN or infinite numbers can't be rounded to {bits} bits; "
            "the model is broken: export an earlier checkpoint"
        )
    groups = nn.functional.pad(weight, (0, -weight.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    flat = groups.reshape(-1, GROUP)
    parts = [_eight(part) if bits == 8 else _four(part) for part in flat.split(CHUNK)]
    values, scales = (torch.cat(side) for side in zip(*parts, strict=True))
    return values.view(groups.shape), scales.view(groups.shape[:2])


def _eight(groups: Tensor) -> tuple[Tensor, Tensor]:
    scale = _bf16(groups.abs().amax(1) / 127)
    scale = torch.where(scale * 127 < groups.abs().amax(1), _next_bf16(scale), scale)
    inner = groups / torch.where(scale == 0, 1, scale)[:, None]
    return inner.round_().clamp_(-127, 127).to(torch.int8), scale


def _four(groups: Tensor) -> tuple[Tensor, Tensor]:
    """In C, where it takes a second for a hundred million weights."""
    groups = groups.contiguous()
    scale = torch.empty(len(groups))
    values = torch.empty(groups.shape, dtype=torch.int8)
    places = (scale.data_ptr(), values.data_ptr())
    library().search_scales(groups.data_ptr(), len(groups), *places)
    return values, scale


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _next_bf16(x: Tensor) -> Tensor:
    """The next larger bf16 number after a positive one."""
    return (x.view(torch.int32) + (1 << 16)).view(torch.float32)


def to_panels(values: Int[Tensor, "n g 32"], scale: Float[Tensor, "n g"], bits: int) -> Tensor:
    """Panels as quantized.c reads them, (panels, bytes)."""
    outputs, groups = scale.shape
    more = -outputs % PANEL
    scale = nn.functional.pad(scale, (0, 0, 0, more)).unflatten(0, (-1, PANEL))
    head = scale.mT.contiguous().bfloat16().view(torch.uint8).flatten(1)
    head = nn.functional.pad(head, (0, -head.shape[1] % LINE))
    # a value and what is added to it, modulo 256; then four bytes are moved as one number
    stored = values.view(torch.uint8) + (1 << (bits - 1))
    if bits == 4:
        stored = stored[..., :16] | stored[..., 16:] << 4
    middle = (1 << (bits - 1)) * (17 if bits == 4 else 1)
    stored = nn.functional.pad(stored, (0, 0, 0, 0, 0, more), value=middle)
    quads = stored.view(torch.int32).view(-1, PANEL, groups, bits).permute(0, 2, 3, 1)
    return torch.cat([head, quads.contiguous().view(torch.uint8).flatten(1)], 1)


def panel_bytes(depth: int, bits: int) -> int:
    """Of one panel."""
    groups = -(-depth // GROUP)
    head = 2 * PANEL * groups
    return head + -head % LINE + groups * PANEL * GROUP * bits // 8


def from_panels(panels: Tensor, depth: int, bits: int) -> Float[Tensor, "p 16 m"]:
    """The weights that panels stand for."""
    groups = -(-depth // GROUP)
    scale = panels[:, : 2 * PANEL * groups].contiguous().view(torch.bfloat16).float()
    size = groups * PANEL * GROUP * bits // 8
    quads = panels[:, -size:].reshape(len(panels), groups, bits, PANEL, 4)
    if bits == 4:
        quads = torch.cat([quads & 15, quads >> 4], 2)
    values = quads.permute(0, 3, 1, 2, 4).float() - (1 << (bits - 1))
    values = values.reshape(len(panels), PANEL, groups, GROUP)
    scale = scale.view(len(panels), groups, PANEL).mT
    return (values * scale[..., None]).flatten(2)[..., :depth]
