"""ctypes mirrors of the structures in the C headers, and the signatures of the C functions."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int, c_long, c_uint64, c_void_p
from typing import Any


class Matrix(ctypes.Structure):
    """`matrix` of gemm.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("scale", c_void_p),
        ("depth", c_long),
        ("outputs", c_long),
        ("format", c_long),
        ("float_rows", c_long),
        ("lora_a", c_void_p),
        ("lora_b", c_void_p),
        ("rank", c_long),
        ("exceptions", c_void_p),
    )


class LayerWeights(ctypes.Structure):
    """`layer` of layer.h."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query", Matrix),
        ("key_value", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("heads", c_long),
        ("epsilon", c_float),
        ("kv_heads", c_long),
        ("width", c_long),
        ("query_bias", c_void_p),
        ("key_value_bias", c_void_p),
        ("right_bias", c_void_p),
    )


class NetworkWeights(ctypes.Structure):
    """`network` of forward.h."""

    _fields_ = (
        ("layers", POINTER(LayerWeights)),
        ("two_stream", c_long),
        ("depth", c_long),
        ("query_norm", c_void_p),
        ("norm", c_void_p),
        ("epsilon", c_float),
        ("codes", c_long),
        ("query", c_int),
        ("embedding", c_void_p),
        ("bos", c_void_p),
        ("head", Matrix),
        ("tokens", Matrix),
        ("unknown", c_void_p),
        ("gate", c_void_p),
        ("init_std", c_float),
        ("right_offset", c_long),
    )


class NativeSampling(ctypes.Structure):
    """`sampling` of sample.h."""

    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("top_k", c_long),
        ("repetition_penalty", c_double),
    )


class NativeSequence(ctypes.Structure):
    """`sequence` of decode_step.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values", "prefix_state", "position", "rank")),
        *((name, c_void_p) for name in ("step_ends", "uniform", "known", "tokens", "logp")),
        *((name, c_void_p) for name in ("strict", "low_limit", "high_limit", "seen")),
        ("sampling", NativeSampling),
        *((name, c_long) for name in ("padding_slot", "step", "read", "upto")),
        *((name, c_long) for name in ("broken", "prefix_rows", "bf16_cache", "n_top")),
        *((name, c_void_p) for name in ("top_token", "top_logp")),
        *((name, c_long) for name in ("steps", "eos")),
    )


class PointerTable:
    """Pointers, one a layer, in an array that C can read."""

    def __init__(self, *pointers: int | None) -> None:
        self.array = (c_void_p * len(pointers))(*pointers)
        self.address = ctypes.addressof(self.array)


def declare(library: Any) -> Any:
    """Give the functions of the loaded library their argument and result types."""
    pointer = c_void_p
    library.skinny_product.argtypes = [POINTER(Matrix), pointer, pointer, c_long]
    library.skinny_product.restype = c_int
    library.search_scales.argtypes = [pointer, c_long, pointer, pointer]
    library.search_scales.restype = None
    library.weight_row.argtypes = [POINTER(Matrix), c_long, c_long, c_long, pointer]
    library.weight_row.restype = None
    library.has_compact.restype = c_int
    library.compact_count.argtypes = [pointer, c_long, c_long, pointer]
    library.compact_pack.argtypes = [pointer, c_long, c_long, pointer, pointer]
    library.compact_unpack.argtypes = [POINTER(Matrix), pointer]
    for made in (library.compact_count, library.compact_pack, library.compact_unpack):
        made.restype = None
    rows = [pointer, pointer, pointer, POINTER(NativeSampling)]
    library.sample_rows.argtypes = [*rows, pointer, c_long, c_long, pointer, pointer]
    library.sample_rows.restype = c_int
    sequences = [pointer, c_long]
    library.decode_step.argtypes = [POINTER(NetworkWeights), *sequences, *[pointer] * 3]
    library.decode_step.restype = c_int
    until = [c_long, c_double, POINTER(c_int)]
    library.decode_steps.argtypes = [*library.decode_step.argtypes, *until]
    library.decode_steps.restype = c_long
    library.read_memory.argtypes = [pointer, c_long]
    library.read_memory.restype = c_double
    library.checksum.argtypes = [pointer, c_long]
    library.checksum.restype = c_uint64
    return library
