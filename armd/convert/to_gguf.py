"""From our model to a GGUF file, through the gguf package: for llama.cpp and all that reads its
files. Left to right it is the same model."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArmdError
from ..runtime.atomic_folders import made_folder
from ..runtime.lock import locked
from ..runtime.signals import raise_if_stopped, terminated_as_interrupt
from .family import WRONG_KINDS, llama3_factors
from .gguf_source import FREQUENCIES, INNER, OUTER
from .layout import interleaved
from .to_gguf_tokenizer import add_tokenizer
from .to_llama import Ours, check_bos, open_ours
from .weight_file import check_disk

if TYPE_CHECKING:
    import numpy as np

KINDS = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0"}
"""Types of the matrices, and what llama.cpp calls a file of them."""
_BLOCK, _BLOCK_BYTES = 32, {"Q8_0": 34, "Q4_0": 18}
_OUTER = {theirs: name for name, theirs in OUTER.items()}
_INNER = {theirs: name for name, theirs in INNER.items()}


def to_gguf(run: str, out: Path, kind: str) -> Ours:
    """Write the file `out`."""
    if kind not in KINDS:
        raise ArmdError(f"no GGUF type '{kind}'; use {' or '.join(KINDS)}")
    if importlib.util.find_spec("gguf") is None:
        raise ArmdError("GGUF files need the package gguf: pip install 'armd[adapt]'")
    if out.exists() or out.suffix != ".gguf":
        raise ArmdError(f"{out} must be a new file that ends in .gguf; name another")
    ours = open_ours(run)
    check_bos(ours)
    sizes = {name: planned(shape, kind) for name, shape in ours.shapes.items()}
    check_disk(out, sum(size for _, size in sizes.values()))
    aside = out.with_name(f".{out.name}.tmp")
    try:
        lock = locked(aside.with_suffix(".lock"), f"process is writing {out}", "wait for it")
        with terminated_as_interrupt(), made_folder(out.parent), lock as held:
            aside.unlink(missing_ok=True)  # it may be a link
            try:
                write(ours, aside, kind, sizes)
                with aside.open("rb") as file:
                    os.fsync(file.fileno())
                if out.exists():  # another process was faster
                    raise FileExistsError(errno.EEXIST, "it is there already")
                raise_if_stopped()
                held.check()
                aside.rename(out)
            finally:
                if held.ours():
                    aside.unlink(missing_ok=True)
    except OSError as error:
        raise ArmdError(
            f"cannot write {out}: {error.strerror or error}; name another file"
        ) from None
    return ours


def planned(shape: tuple[int, ...], kind: str) -> tuple[str, int]:
    """The type and the bytes of a tensor: vectors stay F32, and rows that no blocks fit F16."""
    count = math.prod(shape)
    if len(shape) == 1:
        return "F32", 4 * count
    if kind in _BLOCK_BYTES and shape[1] % _BLOCK == 0:
        return kind, count // _BLOCK * _BLOCK_BYTES[kind]
    return ("F32", 4 * count) if kind == "F32" else ("F16", 2 * count)


def write(ours: Ours, path: Path, kind: str, sizes: dict[str, tuple[str, int]]) -> None:
    import gguf
    import numpy as np

    family = "qwen2" if ours.config.qkv_bias else "llama"
    writer = writer_of(path, family)
    add_facts(writer, ours, getattr(gguf.LlamaFileType, KINDS[kind]))
    try:
        add_tokenizer(writer, ours)
    except ArmdError:
        raise
    except WRONG_KINDS as error:
        raise ArmdError(
            f"the tokenizer.json in {ours.folder} is damaged ({error!r}); copy it again"
        ) from None
    for name, shape in ours.shapes.items():
        stored, size = sizes[name]
        if stored in _BLOCK_BYTES:  # the writer wants the shape in bytes
            shape = (shape[0], size // shape[0])
        dtype = {"F32": np.float32, "F16": np.float16}.get(stored, np.uint8)
        raw = getattr(gguf.GGMLQuantizationType, stored)
        writer.add_tensor_info(gguf_name(name), shape, np.dtype(dtype), size, raw)
    factors = None
    c = ours.config
    if c.rope_llama3:
        factors = np.array(llama3_factors(c.rope_base, c.d_head, c.rope_llama3), np.float32)
        writer.add_tensor_info(FREQUENCIES, factors.shape, factors.dtype, factors.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    heads = {p.name: p.heads for parts in ours.pieces.values() for p in parts}
    for name in ours.shapes:
        tensor = ours.read(name).float()
        if heads[name] and family == "llama":
            tensor = interleaved(tensor, heads[name])
        writer.write_tensor_data(encoded(tensor.numpy(), sizes[name][0]))
    if factors is not None:
        writer.write_tensor_data(factors)
    writer.close()


def writer_of(path: Path, family: str) -> Any:
    """gguf's writer, which by itself writes no empty list."""
    import gguf

    kinds = gguf.GGUFValueType

    class Writer(gguf.GGUFWriter):
        def _pack_val(self, val: Any, vtype: Any, *more: Any, **named: Any) -> bytes:
            if vtype == kinds.ARRAY and len(val) == 0:
                return struct.pack("<IIQ", kinds.ARRAY, kinds.STRING, 0)
            return super()._pack_val(val, vtype, *more, **named)

    return Writer(str(path), family)


def encoded(values: np.ndarray, stored: str) -> np.ndarray:
    import gguf
    import numpy as np

    kind = getattr(gguf.GGMLQuantizationType, stored)
    return np.ascontiguousarray(gguf.quantize(np.ascontiguousarray(values), kind))


def gguf_name(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, number, part = name.split(".", 3)
    inner, _, last = part.rpartition(".")
    return f"blk.{number}.{_INNER[inner]}.{last}"


def add_facts(writer: Any, ours: Ours, file_type: int) -> None:
    c = ours.config
    writer.add_name(ours.folder.name)
    writer.add_block_count(c.n_layers)
    writer.add_context_length(ours.notes.get("max_position_embeddings", c.max_length))
    writer.add_embedding_length(c.d_model)
    writer.add_feed_forward_length(c.d_ff)
    writer.add_head_count(c.n_heads)
    writer.add_head_count_kv(c.n_kv_heads)
    writer.add_key_length(c.d_head)
    writer.add_value_length(c.d_head)
    writer.add_rope_dimension_count(c.d_head)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
