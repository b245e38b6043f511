"""Fast weights: a model whose products suit the few rows of a decoding pass on a CPU.

A block of S tokens passes S or 2S rows through every matrix. Stock linear layers then read memory
at a third of its speed or less, and S streams would win little. Here the matrices are laid out once
for such products (gemm.c), in float32, or in int8 at a quarter of the bytes, and the other work
is done between them without going back to torch: of a layer (layer.c), of a whole pass (forward.c).
"""

import copy
from collections.abc import Callable, Sequence
from ctypes import byref
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..errors import ArmdError
from ..model.layers import Layer
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Tensor
from ..model.streams import CausalLayer, LastTwoStreamLayer, TwoStreamLayer
from .library import library
from .structs import LayerWeights, Matrix, NetworkWeights, SequenceRows, SequenceRowsFields

WEIGHTS = ("plain", "fp32", "int8")
MATRICES = ("query", "key_value", "out", "gate_up", "down")
NORMS = ("attention_norm", "mlp_norm")
PANEL = 16


class SkinnyLinear(nn.Module):
    """A linear layer without bias for a few float32 rows, its weights in float32 or int8. What it
    makes of a row does not depend, to the last bit, on the rows beside it."""

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
    """A layer that layer.c can take a decoding pass through."""

    @property
    def fits(self) -> bool:
        """Its widths are whole vectors of eight; what others need is left to torch."""
        d, ff = cast(SkinnyLinear, self.query).depth, cast(SkinnyLinear, self.down).depth
        return d // self.heads % 8 == 0 and ff % 8 == 0

    def parts(self) -> list[int]:
        """Where its weights are. Asked for in every pass, so past nn.Module's slow attributes."""
        modules: dict[str, Any] = self._modules
        norms = (modules[name]._parameters["weight"] for name in NORMS)
        panels = (modules[name]._buffers["panels"] for name in MATRICES)
        return [part.data_ptr() for part in (*norms, *panels)]

    def address(self) -> LayerWeights:
        """Where layer.c finds them."""
        matrices = (cast(SkinnyLinear, getattr(self, name)).address() for name in MATRICES)
        return LayerWeights(*self.parts()[:2], *matrices, self.heads, self.attention_norm.eps)


# beside the modules, not in them: what holds addresses can't be copied
_known: WeakKeyDictionary[nn.Module, tuple[list[int], Any]] = WeakKeyDictionary()


def addressed(module: nn.Module, parts: list[int], make: Callable[[], Any]) -> Any:
    """What C is told of a module: made again when its parts have moved."""
    known = _known.get(module)
    if known is None or known[0] != parts:
        known = _known[module] = (parts, make())
    return known[1]


def addresses_of(layers: Sequence[FastLayer]) -> Any:
    return (LayerWeights * len(layers))(*(layer.address() for layer in layers))


def through(
    layers: Sequence[FastLayer],
    rows: Float[Tensor, "1 n d"],
    turn: Float[Tensor, "1 n half 2"],
    texts: Sequence[SequenceRowsFields],
    *,
    last: bool = False,
) -> Float[Tensor, "1 k d"]:
    """Rows of a decoding pass through some layers, text by text: of each text the first leave keys
    and values in its cache, then all see it. With `last`, those that left keys end at the last of
    these layers."""
    rows, turn = rows.contiguous(), turn.contiguous()
    left = sum(text[5] for text in texts) if last else 0
    out = rows.new_empty(1, rows.shape[1] - left, rows.shape[2])
    told = (SequenceRows * len(texts))(*texts)
    ends = (tensor.data_ptr() for tensor in (rows, turn, out))
    parts = [part for layer in layers for part in layer.parts()]
    weights = addressed(layers[0], parts, lambda: addresses_of(layers))
    if library().run_layers(weights, len(layers), told, len(texts), last, *ends):
        raise MemoryError("no memory for a decoding pass")
    return out


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

    @cached_property
    def whole(self) -> bool:
        """forward.c can take a pass through all of it: there are two streams, they start as the
        paper's do, and every layer fits."""
        usual = (
            type(self).first_query_from_sums is ArmdLM.first_query_from_sums
            and self.config.query != "shift"
        )
        return usual and all(isinstance(part, FastLayer) and part.fits for part in self.layers)

    def address(self) -> NetworkWeights:
        """Where forward.c finds it."""
        layers = [cast(FastLayer, layer) for layer in self.layers]
        norms = [norm.weight.data_ptr() for norm in (self.query_norm, self.norm)]
        head = cast(SkinnyLinear, self.head).panels
        ends = [part.data_ptr() for part in (self.embedding.weight, self.bos, head)]
        parts = [part for layer in layers for part in layer.parts()]
        return addressed(self, norms + ends + parts, lambda: self._addresses(layers, norms, ends))

    def _addresses(
        self, layers: list[FastLayer], norms: list[int], ends: list[int]
    ) -> NetworkWeights:
        config, head = self.config, cast(SkinnyLinear, self.head).address()
        mean = config.query == "mean"
        codes = 1 if mean else config.d_pe
        sizes = (config.n_two_stream, len(layers))
        start = (addresses_of(layers), *sizes, *norms, config.norm_eps, codes, mean)
        return NetworkWeights(*start, *ends[:2], head)

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
    fast.__class__ = type(f"Fast{type(model).__name__}", (FastLM, type(model)), {})
    for part in fast.layers:
        layer = cast(Layer, part)
        for name in MATRICES:
            linear = cast(nn.Linear, getattr(layer, name))
            setattr(layer, name, SkinnyLinear(linear.weight, int8=weights == "int8"))
        layer.__class__ = FAST.get(type(layer), type(layer))
    cast(FastLM, fast).head = SkinnyLinear(fast.embedding.weight, int8=weights == "int8")
    return fast.eval()


def compiled(model: ArmdLM, **options: Any) -> ArmdLM:
    """A copy whose layers are compiled around the attention call: what is left has the same few
    shapes in every pass, while the cache that attention reads grows."""
    fast = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for layer in fast.layers:
        for name in ("queries", "keys_values", "project_and_mlp"):
            setattr(layer, name, torch.compile(getattr(layer, name), **options))
    return fast.eval()
