"""Fast weights: a model whose products suit the few rows of a decoding pass on a CPU.

A block of S tokens passes S or 2S rows through every matrix. Stock linear layers then read memory
at a third of its speed or less, and S streams would win little. Here the matrices are laid out once
for such products (skinny.c), in float32, or in int8 at a quarter of the bytes, and a layer's other
work is done between them without going back to torch (layer.c).
"""

import copy
from ctypes import byref
from typing import Any, cast

import torch
from torch import nn

from .errors import ArmdError
from .layers import Entry, Layer
from .modeling_armd import ArmdLM, CausalLayer, LastTwoStreamLayer, TwoStreamLayer
from .native import LayerWeights, Matrix, TextRows, library
from .shapes import Float, Tensor

WEIGHTS = ("plain", "fp32", "int8")
MATRICES = ("query", "key_value", "out", "gate_up", "down")
PANEL = 16
FEW = 512
"""Above so many rows the common product is better."""


class SkinnyLinear(nn.Module):
    """A linear layer without bias for a few float32 rows, its weights in float32 or int8."""

    panels: Tensor
    scale: Tensor | None

    def __init__(self, weight: Float[Tensor, "n m"], *, int8: bool) -> None:
        super().__init__()
        self.outputs, self.depth = weight.shape
        weight, scale = weight.detach(), None
        if int8:
            scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
            weight = (weight / scale[:, None]).round().to(torch.int8)
        self.register_buffer("scale", scale)
        padded = nn.functional.pad(weight, (0, 0, 0, -self.outputs % PANEL))
        self.register_buffer("panels", padded.unflatten(0, (-1, PANEL)).mT.contiguous())

    def forward(self, x: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n"]:
        rows = x.reshape(-1, self.depth).contiguous()
        if len(rows) > FEW:
            return nn.functional.linear(rows, self.matrix()).view(*x.shape[:-1], self.outputs)
        out = rows.new_empty(len(rows), self.outputs)
        told = byref(self.address())
        library().skinny_product(told, rows.data_ptr(), out.data_ptr(), len(rows))
        return out.view(*x.shape[:-1], self.outputs)

    def address(self) -> Matrix:
        """Where the C functions find it."""
        scale = None if self.scale is None else self.scale.data_ptr()
        return Matrix(self.panels.data_ptr(), scale, self.depth, self.outputs)

    def matrix(self) -> Float[Tensor, "n m"]:
        """The weights as they count, laid out as usual."""
        weight = self.panels.mT.flatten(0, 1)[: self.outputs].float()
        return weight if self.scale is None else weight * self.scale[:, None]


class FastLayer(Layer):
    """A layer whose decoding pass is one call of layer.c; what that cannot do is left to torch."""

    def decode(
        self,
        rows: Float[Tensor, "b r d"],
        turn: Float[Tensor, "b r half 2"],
        keys: Float[Tensor, "b s h e"],
        values: Float[Tensor, "b s h e"],
        entry: Entry,
        *,
        skip: int = 0,
    ) -> Float[Tensor, "b k d"]:
        (batch, count, d), ff = rows.shape, cast(SkinnyLinear, self.down).depth
        if batch * count > FEW or d % 8 or keys.shape[3] % 8 or ff % 8:
            return super().decode(rows, turn, keys, values, entry, skip=skip)
        rows, turn = rows.contiguous(), turn.expand(batch, -1, -1, -1).contiguous()
        out = rows.new_empty(batch, count - skip, d)
        tables = [
            None if t is None else t.contiguous() for t in (keys, values, entry.slot, entry.limit)
        ]
        places = zip(*(_each(table, batch) for table in tables), strict=True)
        numbers = (count, entry.own, entry.start, entry.count)
        texts = (TextRows * batch)(*((*place, *numbers) for place in places))
        ends = (tensor.data_ptr() for tensor in (rows, turn, out))
        if library().layer_pass(byref(self.address()), texts, batch, skip > 0, *ends):
            raise MemoryError("no memory for a decoding pass")
        return out

    def address(self) -> LayerWeights:
        """Where layer.c finds its parts."""
        norms = (self.attention_norm.weight.data_ptr(), self.mlp_norm.weight.data_ptr())
        matrices = (cast(SkinnyLinear, getattr(self, name)).address() for name in MATRICES)
        return LayerWeights(*norms, *matrices, self.heads, self.attention_norm.eps)


def _each(table: Tensor | None, batch: int) -> list[int | None]:
    """The address of each row of a contiguous table."""
    if table is None:
        return [None] * batch
    size = table[0].numel() * table.element_size()
    return [table.data_ptr() + i * size for i in range(batch)]


class FastTwoStreamLayer(FastLayer, TwoStreamLayer): ...


class FastLastTwoStreamLayer(FastLayer, LastTwoStreamLayer): ...


class FastCausalLayer(FastLayer, CausalLayer): ...


FAST = {
    TwoStreamLayer: FastTwoStreamLayer,
    LastTwoStreamLayer: FastLastTwoStreamLayer,
    CausalLayer: FastCausalLayer,
}


class FastLM(ArmdLM):
    """An ArmdLM for decoding alone; its head is a layer of its own."""

    head: nn.Module

    def logits(self, rows: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        return self.head(rows)

    def head_matrix(self) -> Float[Tensor, "v d"]:
        return cast(SkinnyLinear, self.head).matrix()


def pack(model: ArmdLM, weights: str = "fp32") -> ArmdLM:
    """A copy of the model for decoding. It shares the embedding and the norms with the original
    and holds its own matrices. "plain" is the model itself, and so is "fp32" where it has no
    advantage: in other precisions, or without a C compiler. On CUDA "fp32" compiles the layers."""
    if weights not in WEIGHTS:
        raise ArmdError(f"no weights '{weights}'; use one of {', '.join(WEIGHTS)}")
    able = model.device.type == "cpu" and model.dtype == torch.float32 and library() is not None
    if weights == "fp32" and model.device.type == "cuda":
        return compiled(model)
    if weights == "plain" or (weights == "fp32" and not able):
        return model
    if not able:
        raise ArmdError(
            "int8 weights need a float32 model on a CPU and a C compiler (cc or gcc); install one, "
            "or use --weights plain"
        )
    # the memo makes the copy share every parameter
    fast = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    fast.__class__ = FastLM
    for part in fast.layers:
        layer = cast(Layer, part)
        for name in MATRICES:
            linear = cast(nn.Linear, getattr(layer, name))
            setattr(layer, name, SkinnyLinear(linear.weight, int8=weights == "int8"))
        layer.__class__ = FAST[type(layer)]
    cast(FastLM, fast).head = SkinnyLinear(fast.embedding.weight, int8=weights == "int8")
    return fast.eval()


def compiled(model: ArmdLM, **options: Any) -> ArmdLM:
    """A copy whose layers are compiled around the attention call: what is left has the same few
    shapes in every pass, while the cache that attention reads grows."""
    fast = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for layer in fast.layers:
        for name in ("queries", "keys_values", "finish"):
            setattr(layer, name, torch.compile(getattr(layer, name), **options))
    return fast.eval()
