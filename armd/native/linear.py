"""A linear layer whose weights are laid out for products of a few rows (gemm.c, quantized.c,
compact.c)."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref

import torch
from torch import nn

from ..errors import ArmdError
from ..model.adapted_linear import with_adapter
from ..model.shapes import Float, Int, Tensor
from . import compact
from .huge_pages import Arena
from .library import library
from .quantize import PANEL, from_panels, quantize, to_panels
from .structs import Matrix

FORMATS = ("fp32", "int8", "bf16", "q8", "q4")
"""In the order of gemm.h."""
BITS = {"q8": 8, "q4": 4}


def check_float32(parts: Iterable[Tensor]) -> None:
    """Raise if the C functions would take these for something else than they are."""
    for part in parts:
        if part.dtype != torch.float32 or not part.is_cpu:
            raise ArmdError(
                f"packed weights are float32 on a CPU, and these became {part.dtype} on "
                f"{part.device}; cast or move the model before it is packed"
            )


class SkinnyLinear(nn.Module):
    """A linear layer for a few float32 rows. What it makes of a row does not depend, to the last
    bit, on the rows beside it. With q8 and q4 weights rows are rounded to 8 bits too, unless
    `float_rows` is set. `compacted`: float32 weights are stored in 28 bits, without loss, where
    the machine and the weights suit."""

    panels: Tensor
    scale: Tensor | None
    exceptions: Tensor | None
    bias: nn.Parameter | None
    lora_a: nn.Parameter | None
    lora_b: nn.Parameter | None

    def __init__(
        self,
        weight: Float[Tensor, "n m"],
        bias: nn.Parameter | None = None,
        *,
        weights: str = "fp32",
        float_rows: bool = False,
        arena: Arena | None = None,
        compacted: bool = False,
    ) -> None:
        weight = weight.detach()
        made = compact.compacted(weight, arena) if compacted and weights == "fp32" else None
        if made is not None:
            panels, scale, exceptions = made[0], None, made[1]
        else:
            (panels, scale), exceptions = _laid_out(weight, weights), None
            panels = arena.copy(panels) if arena else panels
        self._hold(panels, scale, bias, tuple(weight.shape), weights, float_rows=float_rows)
        self.exceptions = exceptions

    @classmethod
    def of_panels(
        cls,
        panels: Tensor,
        bias: nn.Parameter | None,
        shape: tuple[int, int],
        *,
        weights: str,
        float_rows: bool,
    ) -> SkinnyLinear:
        """Of q8 or q4 panels that were made before."""
        made = cls.__new__(cls)
        made._hold(panels, None, bias, shape, weights, float_rows=float_rows)
        return made

    def _hold(
        self,
        panels: Tensor,
        scale: Tensor | None,
        bias: nn.Parameter | None,
        shape: tuple[int, ...],
        weights: str,
        *,
        float_rows: bool,
    ) -> None:
        super().__init__()
        self.outputs, self.depth = shape
        self.weights, self.float_rows = weights, float_rows
        for name, part in (("bias", bias), ("lora_a", None), ("lora_b", None)):
            self.register_parameter(name, part)
        self.register_buffer("panels", panels)
        self.register_buffer("scale", scale)
        self.register_buffer("exceptions", None)

    def forward(
        self, x: Float[Tensor, "*b m"], adapted: Float[Tensor, "*#b 1"] | None = None
    ) -> Float[Tensor, "*b n"]:
        rows = x.reshape(-1, self.depth).contiguous()
        check_float32([rows])
        out = rows.new_empty(len(rows), self.outputs)
        if library().skinny_product(
            byref(self.address()), rows.data_ptr(), out.data_ptr(), len(rows)
        ):
            raise MemoryError("no memory for a product")
        out = out.view(*x.shape[:-1], self.outputs)
        out = out if self.bias is None else out + self.bias
        return with_adapter(out, x, adapted, self.lora_a, self.lora_b)

    def address(self) -> Matrix:
        """Where the C functions find it."""
        scale = None if self.scale is None else self.scale.data_ptr()
        exceptions = None if self.exceptions is None else self.exceptions.data_ptr()
        code = FORMATS.index(self.weights) if exceptions is None else compact.CODE
        shape = (self.depth, self.outputs, code, self.float_rows)
        lora = [None if part is None else part.data_ptr() for part in (self.lora_a, self.lora_b)]
        rank = 0 if self.lora_a is None else len(self.lora_a)
        return Matrix(self.panels.data_ptr(), scale, *shape, *lora, rank, exceptions)

    def matrix(self) -> Float[Tensor, "n m"]:
        """The weights as they count, laid out as usual."""
        if self.weights in BITS:
            weight = from_panels(self.panels, self.depth, BITS[self.weights])
            return weight.flatten(0, 1)[: self.outputs]
        if self.exceptions is not None:
            return compact.unpacked(self.address())
        weight = self.panels.mT.flatten(0, 1)[: self.outputs].float()
        return weight if self.scale is None else weight * self.scale[:, None]


def _laid_out(weight: Float[Tensor, "n m"], weights: str) -> tuple[Tensor, Tensor | None]:
    """Panels, and the scales of int8."""
    if weights in BITS:
        return to_panels(*quantize(weight, BITS[weights]), BITS[weights]), None
    scale = None
    if weights == "int8":
        scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        weight = (weight / scale[:, None]).round().to(torch.int8)
    if weights == "bf16":
        weight = weight.bfloat16()
    padded = nn.functional.pad(weight, (0, 0, 0, -len(weight) % PANEL))
    return padded.unflatten(0, (-1, PANEL)).mT.contiguous(), scale


def count_weights(model: nn.Module) -> int:
    """Numbers that a model has, those in panels of 8 or 4 bits included."""
    packed = [part for part in model.modules() if isinstance(part, SkinnyLinear)]
    rounded = sum(part.outputs * part.depth for part in packed if part.weights in BITS)
    return rounded + sum(weight.numel() for weight in model.parameters())


class PackedEmbedding(nn.Module):
    """Embeddings read from the panels of a matrix, which may be the head's."""

    def __init__(self, source: SkinnyLinear) -> None:
        super().__init__()
        self.source = source

    @property
    def weight(self) -> Float[Tensor, "v d"]:
        return self.source.matrix()

    def forward(self, tokens: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        source, flat = self.source, tokens.flatten()
        panels = from_panels(source.panels[flat // PANEL], source.depth, BITS[source.weights])
        rows = panels[torch.arange(len(flat)), flat % PANEL]
        return rows.view(*tokens.shape, source.depth)
