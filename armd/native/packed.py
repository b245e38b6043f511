"""Fast weights: a model whose products suit the few rows of a decoding pass on a CPU.

A block of S tokens passes S or 2S rows through every matrix. Stock linear layers then read memory
at a third of its speed or less, and S streams would win little. Here the matrices are laid out once
for such products (linear.py), in float32 or in fewer bits, and the other work is done between them
without going back to torch: of a layer (layer.c), of a whole pass (forward.c).
"""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..errors import ArmdError
from ..model.adapted_linear import AdaptedLinear
from ..model.head import ROWS
from ..model.layers import Layer
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Int, Tensor
from ..model.streams import CausalLayer, LastTwoStreamLayer, NeighborLayer, TwoStreamLayer
from .build import own_compiled_graphs
from .huge_pages import Arena
from .known_model import MATRICES, NORMS, is_ours
from .library import library
from .linear import BITS, PackedEmbedding, SkinnyLinear, check_float32
from .shared_copy import sharing_weights
from .structs import LayerWeights, Matrix, NetworkWeights

WEIGHTS = ("plain", "fp32", "int8", "bf16", "q8", "q4")
MAX_HEAD = 256
"""MAX_WIDTH of attention.h."""
COMPACT_FROM = 64 << 20
"""Bytes of float32 matrices from which on they are stored in 28 bits: fewer stay in the processor's
cache, where unpacking would take longer than reading."""
CACHES = ("fp32", "bf16")
"""Formats of keys and values."""
KINDS = (*MATRICES, "head")
"""Of matrices; the embedding goes with the head."""
QUERIES = ("prefix", "mean", "shift", "neighbor")
"""In the order of forward.h."""


class FastLayer(Layer):
    """A layer that layer.c can take a decoding pass through."""

    @property
    def fits(self) -> bool:
        """Its widths are whole vectors of eight; what others need is left to torch."""
        query, ff = cast(SkinnyLinear, self.query), cast(SkinnyLinear, self.down).depth
        widths = (query.depth, head := query.outputs // self.heads, ff)
        return all(width % 8 == 0 for width in widths) and head <= MAX_HEAD

    def parts(self) -> list[int]:
        """Where its weights are. Asked for in every pass, so past nn.Module's slow attributes."""
        modules: dict[str, Any] = self._modules
        norms = (modules[name]._parameters["weight"] for name in NORMS)
        panels = (modules[name]._buffers["panels"] for name in MATRICES)
        biases = [modules[name]._parameters["bias"] for name in ("query", "key_value")]
        biases.append(self._parameters.get("right_bias"))
        biases += [modules[n]._parameters[a] for n in MATRICES for a in ("lora_a", "lora_b")]
        optional = [0 if part is None else part.data_ptr() for part in biases]
        return [*(part.data_ptr() for part in (*norms, *panels)), *optional]

    def address(self) -> LayerWeights:
        """Where layer.c finds them."""
        modules = [cast(SkinnyLinear, getattr(self, name)) for name in MATRICES]
        parts, matrices = self.parts(), (module.address() for module in modules)
        width = modules[0].outputs // self.heads
        shape = (self.heads, self.attention_norm.eps, modules[1].outputs // (2 * width), width)
        biases = (part or None for part in parts[7:10])
        return LayerWeights(*parts[:2], *matrices, *shape, *biases)


# beside the modules, not in them: what holds addresses can't be copied
_known: WeakKeyDictionary[nn.Module, tuple[list[int], Any]] = WeakKeyDictionary()


def addressed(module: nn.Module, parts: list[int], make: Callable[[], Any]) -> Any:
    """A module as C reads it: made again when its parts have moved."""
    known = _known.get(module)
    if known is None or known[0] != parts:
        known = _known[module] = (parts, make())
    return known[1]


def addresses_of(layers: Sequence[FastLayer]) -> Any:
    return (LayerWeights * len(layers))(*(layer.address() for layer in layers))


class FastTwoStreamLayer(FastLayer, TwoStreamLayer): ...


class FastLastTwoStreamLayer(FastLayer, LastTwoStreamLayer): ...


class FastCausalLayer(FastLayer, CausalLayer): ...


class FastNeighborLayer(FastLayer, NeighborLayer): ...


FAST = {
    TwoStreamLayer: FastTwoStreamLayer,
    LastTwoStreamLayer: FastLastTwoStreamLayer,
    CausalLayer: FastCausalLayer,
    NeighborLayer: FastNeighborLayer,
}


class FastLM(ArmdLM):
    """An ArmdLM for decoding alone; its head is a layer of its own."""

    head: nn.Module
    cache_dtype: torch.dtype | None = None
    """Of keys and values, where they are not as the model's numbers."""

    @cached_property
    def whole(self) -> bool:
        """decode_step.c can run all of it: rows start as in ArmdLM, and every layer fits."""
        usual = type(self).first_query_from_sums is ArmdLM.first_query_from_sums
        return usual and all(isinstance(part, FastLayer) and part.fits for part in self.layers)

    kept: tuple[str, ...] = ()
    """Kinds of matrices of q4 weights that are q8."""

    @property
    def weights(self) -> str:
        """Their format."""
        return "q4" if self.kept else cast(SkinnyLinear, self.head).weights

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        raise ArmdError("packed weights are not saved so; save the plain model, or: armd quantize")

    def address(self) -> NetworkWeights:
        """Where forward.c finds it."""
        layers = [cast(FastLayer, layer) for layer in self.layers]
        head = cast(SkinnyLinear, self.head).panels
        table = self.embedding
        table = table.source.panels if isinstance(table, PackedEmbedding) else table.weight
        weights: list[Tensor | None] = [self.norm.weight, table, self.bos, head]
        query_norm = getattr(self, "query_norm", None)  # no part of query="shift"
        weights += [query_norm and query_norm.weight]
        weights += [getattr(self, name, None) for name in ("unknown", "gate")]  # of "neighbor"
        pointers = [0 if weight is None else weight.data_ptr() for weight in weights]
        parts = [part for layer in layers for part in layer.parts()]
        return addressed(self, pointers + parts, lambda: self._addresses(layers, pointers))

    def _addresses(self, layers: list[FastLayer], pointers: list[int]) -> NetworkWeights:
        check_float32(self.parameters())
        config, head = self.config, cast(SkinnyLinear, self.head).address()
        norm, embedding, bos, _, *optional = pointers
        query_norm, *neighbor = (pointer or None for pointer in optional)
        codes = config.d_pe if config.query in ("prefix", "neighbor") else 1
        sizes = (config.n_two_stream, len(layers))
        norms = (query_norm, norm, config.norm_eps)
        start = (addresses_of(layers), *sizes, *norms, codes, QUERIES.index(config.query))
        tokens = Matrix()
        if isinstance(self.embedding, PackedEmbedding):
            embedding, tokens = None, self.embedding.source.address()
        end = (*neighbor, config.init_std, config.right_offset)
        return NetworkWeights(*start, embedding, bos, head, tokens, *end)

    def logits(self, rows: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        return self.head(rows)

    def head_matrix(self) -> Float[Tensor, "v d"]:
        return cast(SkinnyLinear, self.head).matrix()

    def target_log_probs(
        self, rows: Float[Tensor, "r d"], target: Int[Tensor, "r"]
    ) -> Float[Tensor, "r"]:
        head = cast(SkinnyLinear, self.head)
        if head.weights not in BITS or head.float_rows:
            return super().target_log_probs(rows, target)
        parts = zip(rows.split(ROWS), target.split(ROWS), strict=True)
        made = (head(part).log_softmax(-1).gather(1, to[:, None])[:, 0] for part, to in parts)
        return torch.cat([*made, rows.new_empty(0)])


def pack(
    model: ArmdLM, weights: str = "fp32", *, float_rows: bool = False, kept: tuple[str, ...] = ()
) -> ArmdLM:
    """A copy of the model for decoding, which keeps its own weights: what becomes of the model
    afterwards changes nothing in it. `float_rows`: q8 and q4 leave rows as they are;
    `kept`: kinds of matrices (KINDS) that are q8 among q4. "plain" is the model itself, and so is
    "fp32" where it has no advantage: in other precisions, or without a C compiler. On CUDA "fp32"
    compiles the layers."""
    if weights not in WEIGHTS:
        raise ArmdError(f"no weights '{weights}'; use one of {', '.join(WEIGHTS)}")
    if isinstance(model, FastLM):
        return packed_already(model, weights)
    if weights == "fp32" and model.device.type == "cuda":
        return compiled(model)
    able = model.device.type == "cpu" and model.dtype == torch.float32 and is_ours(model)
    able = able and library() is not None
    if weights == "plain" or (weights == "fp32" and not able):
        return model
    if not able:
        raise ArmdError(
            f"{weights} weights need a float32 model on a CPU, without adapters of others that are "
            "not merged, and a C compiler (cc, gcc) that works; install one, or use --weights plain"
        )
    fast = sharing_weights(model)  # until the matrices are packed
    arena = Arena()
    options = {"float_rows": float_rows, "arena": arena}
    compacted = 4 * sum(weight.numel() for weight in model.parameters()) >= COMPACT_FROM

    def make(name: str, weight: Tensor, bias: nn.Parameter | None) -> SkinnyLinear:
        own = format_of(name, weights, kept)
        return SkinnyLinear(weight, bias, weights=own, compacted=compacted, **options)

    return with_own(assemble(fast, make, packed_embedding=weights in BITS, kept=kept)).eval()


def with_own(model: FastLM) -> FastLM:
    """The model with copies of what was not packed."""
    copies = {id(p): nn.Parameter(p.detach().clone(), p.requires_grad) for p in model.parameters()}
    for module in model.modules():
        own = {n: copies[id(w)] for n, w in module._parameters.items() if w is not None}
        module._parameters.update(own)
    return model


def format_of(name: str, weights: str, kept: Collection[str]) -> str:
    """Of the matrix of this name."""
    return "q8" if weights == "q4" and kind_of(name) in kept else weights


def kind_of(name: str) -> str:
    return name.split(".")[-1] if name.startswith("layers.") else "head"


def assemble(
    model: ArmdLM,
    make: Callable[[str, Tensor, nn.Parameter | None], SkinnyLinear],
    *,
    packed_embedding: bool,
    kept: tuple[str, ...] = (),
) -> FastLM:
    """Put what `make` gives for each matrix, by its name, into the model itself."""
    for number, part in enumerate(model.layers):
        layer = cast(Layer, part)
        for name in MATRICES:
            linear = cast(AdaptedLinear, getattr(layer, name))
            made = make(f"layers.{number}.{name}", linear.weight, linear.bias)
            made.lora_a, made.lora_b = linear.lora_a, linear.lora_b
            setattr(layer, name, made)
        layer.__class__ = FAST.get(type(layer), type(layer))
    head = make("head", model.head_matrix(), None)
    if packed_embedding:
        tied = model.config.tie_word_embeddings
        source = head if tied else make("embedding.source", model.embedding.weight, None)
        model.embedding = PackedEmbedding(source)  # type: ignore[assignment]
    model.__class__ = type(f"Fast{type(model).__name__}", (FastLM, type(model)), {})
    fast = cast(FastLM, model)
    fast.head, fast.kept = head, kept
    return fast


def with_cache(model: ArmdLM, cache: str) -> ArmdLM:
    """The model itself; sequences that it decodes keep keys and values in this format."""
    if cache not in CACHES:
        raise ArmdError(f"no cache '{cache}'; use one of {', '.join(CACHES)}")
    if cache != "fp32" and (not isinstance(model, FastLM) or not model.whole):
        raise ArmdError(
            f"a {cache} cache needs packed weights on a CPU and a C compiler; use --cache fp32"
        )
    if isinstance(model, FastLM):
        model.cache_dtype = torch.bfloat16 if cache == "bf16" else None
    return model


def packed_already(model: FastLM, weights: str) -> ArmdLM:
    """A model from a quantised folder, asked for as other weights: its own are the only ones."""
    if weights not in ("fp32", own := model.weights):  # fp32: nothing was asked for
        raise ArmdError(f"this model has {own} weights already; leave out --weights {weights}")
    return model


def compiled(model: ArmdLM, **options: Any) -> ArmdLM:
    """A copy with layers compiled around the attention call: the rest has the same few shapes."""
    own_compiled_graphs()
    fast = sharing_weights(model)
    for layer in fast.layers:
        for name in ("queries", "keys_values", "project_and_mlp"):
            setattr(layer, name, torch.compile(getattr(layer, name), **options))
    return fast.eval()
