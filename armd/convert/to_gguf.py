"""From our model to a GGUF file, through the gguf package: for llama.cpp and all that reads its
files. Left to right it is the same model."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.tokenizer import from_folder
from ..errors import ArmdError
from ..runtime.atomic_folders import made_folder
from ..runtime.lock import locked
from ..runtime.signals import raise_if_stopped, terminated_as_interrupt
from .family import WRONG_KINDS, llama3_factors
from .gguf_source import FREQUENCIES, INNER, OUTER
from .gguf_tokenizer import SPACE
from .gguf_words import name_for
from .layout import interleaved
from .source import read_json
from .to_llama import Ours, bos_and_eos, check_bos, copy_tokenizer, open_ours
from .weight_file import check_disk

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

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


def add_tokenizer(writer: Any, ours: Ours) -> None:
    """Tokens, their kinds, merges, special tokens and the chat template."""
    import gguf

    file = ours.folder / "tokenizer.json"
    if not file.is_file():
        raise ArmdError(f"no tokenizer.json in {ours.folder}; copy the model's tokenizer there")
    saved = read_json(file, str(ours.folder))
    if saved["model"].get("type") != "BPE":
        raise ArmdError(f"a {saved['model'].get('type')} tokenizer has no place in a GGUF file")
    vocabulary = {number: token for token, number in saved["model"]["vocab"].items()}
    added = {token["id"]: token for token in saved["added_tokens"]}
    spoken = saved["model"].get("byte_fallback", False)  # as sentencepiece has it
    words, kinds, scores = [], [], []
    for number in range(ours.config.vocab_size):
        token = added[number]["content"] if number in added else vocabulary.get(number)
        words.append(f"[PAD{number}]" if token is None else token)
        kinds.append(token_kind(token, added.get(number), spoken))
        scores.append(-float(number))
    if not spoken:
        check_normalizer(saved.get("normalizer"))
    writer.add_tokenizer_model("llama" if spoken else "gpt2")
    writer.add_tokenizer_pre("default" if spoken else ours.notes.get("gguf_pre") or name_for(saved))
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    merges = not spoken and bool(saved["model"].get("merges"))
    if spoken:
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(checked_space(from_folder(ours.folder).backend))
    elif not merges:  # each byte is a token; without the list nobody reads the file
        writer.add_key_value(gguf.Keys.Tokenizer.MERGES, [], gguf.GGUFValueType.ARRAY)
    with tempfile.TemporaryDirectory() as folder:
        copy_tokenizer(ours.folder, Path(folder))
        shutil.copyfile(ours.folder / "config.json", Path(folder, "config.json"))
        special = gguf.SpecialVocab(folder, load_merges=merges, n_vocab=len(words))
    bos, eos = bos_and_eos(ours.folder)
    found = {"bos": bos, "eos": eos}
    special.special_token_ids |= {role: n for role, n in found.items() if n is not None}
    special.add_to_gguf(writer, quiet=True)


def check_normalizer(normalizer: dict[str, Any] | None) -> None:
    """Raise for one that changes ordinary text, which llama.cpp would not do before its BPE. NFC
    changes only text that is composed otherwise; there a line says so."""
    kinds = {part["type"] for part in (normalizer or {}).get("normalizers", [normalizer]) if part}
    if kinds - {"NFC"}:
        raise ArmdError(
            f"the tokenizer changes text first ({', '.join(sorted(kinds))}), for which a GGUF file "
            "has no place; use --to llama"
        )
    if kinds:
        print(
            "armd: warning: text that is not in Unicode's form NFC gets other tokens in llama.cpp",
            file=sys.stderr,
        )


def checked_space(backend: Tokenizer) -> bool:
    """Whether a space is put before a text; warns where that is not always so, as with Metaspace,
    which no GGUF file can say."""
    first, spaced = (backend.encode(t, add_special_tokens=False).tokens for t in ("a", " a"))
    before = bool(first) and first[0].startswith(SPACE)
    if before and first == spaced:
        print(
            "armd: warning: a text that begins with a space, or stands after a special token, gets "
            "one more space there",
            file=sys.stderr,
        )
    return before


def token_kind(token: str | None, added: dict[str, Any] | None, spoken: bool) -> int:
    import gguf

    if token is None:
        return gguf.TokenType.UNUSED
    if added is not None:
        return gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    if spoken and len(token) == 6 and token.startswith("<0x"):
        return gguf.TokenType.BYTE
    return gguf.TokenType.NORMAL
