"""A GGUF file as a source: its metadata in transformers' names, its tensors dequantized one by one.

For `llama` files queries and keys are already interleaved, as ours are; for `qwen2` they are not.
Everything comes out as float32: nothing is rounded a second time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArmdError, first_line
from ..runtime.atomic_folders import watched
from .family import LLAMA3, WRONG_KINDS, check_family, llama3_factors, refuse
from .gguf_tokenizer import save_tokenizer
from .source import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.shapes import Tensor

OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FREQUENCIES = "rope_freqs.weight"
OTHERS = {
    "attn_logit_softcapping": "soft-capped logits",
    "final_logit_softcapping": "soft-capped logits",
    "attention.sliding_window": "sliding windows",
    "attention.scale": "attention of another scale",
    "attention.clamp_kqv": "clamped queries and keys",
    "attention.max_alibi_bias": "ALiBi",
    "logit_scale": "scaled logits",
}
"""What a file can say of its network that ours does not do."""
LONG = {f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges")}
"""Left to the tokenizer's reader."""
# the scalings that released models have, because a file names only what follows from them
LLAMA3_KNOWN: list[dict[str, float]] = [
    dict(zip(map(str, LLAMA3), (f, 1.0, 4.0, 8192), strict=True)) for f in (8.0, 32.0)
]


def open_gguf(file: Path) -> Source:
    """The model in a GGUF file."""
    import torch

    if not file.is_file():
        raise ArmdError(f"no file {file}; give a GGUF file")
    if importlib.util.find_spec("gguf") is None:
        raise ArmdError("GGUF files need the package gguf: pip install 'armd[adapt]'")
    import gguf

    check = watched(file)
    try:
        reader = fast_reader(str(file))
        fields = {key: found.contents() for key, found in reader.fields.items() if key not in LONG}
        tensors = {their_name(t.name): t for t in reader.tensors if t.name != FREQUENCIES}
        frequencies = [t.data.tolist() for t in reader.tensors if t.name == FREQUENCIES]
        check_places(reader)
    except PermissionError:
        raise
    except Exception as error:  # the reader raises many kinds
        reason = first_line(error)
        raise ArmdError(
            f"{file} is cut off or no GGUF file ({reason}); download it again"
        ) from None
    if reader.byte_order == "S":
        raise ArmdError(f"{file} is for machines of the other byte order; get a little-endian one")
    facts = checked_facts(file, fields, tensors, frequencies[0] if frequencies else None)
    shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in tensors.items()}

    def read(name: str) -> Tensor:
        found = tensors[name]
        try:
            values = gguf.dequantize(bytes_of(file, found), found.tensor_type)
        except NotImplementedError:
            kind = found.tensor_type.name
            raise ArmdError(
                f"{file} holds weights of type {kind}, which gguf cannot read; get one of Q8_0"
            ) from None
        return torch.from_numpy(values.copy()).float().reshape(shapes[name])

    pre = {"gguf_pre": str(fields.get("tokenizer.ggml.pre", ""))}
    return Source(
        str(file),
        facts,
        shapes,
        read,
        torch.float32,
        lambda out: save_tokenizer(file, reader.fields, out),
        check,
        half_split=facts["model_type"] != "llama",
        notes={key: value for key, value in pre.items() if value},
    )


def bytes_of(file: Path, tensor: Any) -> Any:
    """A tensor as it stands in the file now. The reader's own is mapped: a file that is cut
    meanwhile would end the process."""
    import numpy as np

    place = {"dtype": tensor.data.dtype, "count": tensor.data.size, "offset": tensor.data_offset}
    found = np.fromfile(file, **place)
    if len(found) < tensor.data.size:
        raise ArmdError(f"{file} was cut while it was read; give the command again")
    return found.reshape(tensor.data.shape)


SMALL = 1 << 20
"""Bytes of a part of the file that is kept in memory: all but weights."""


def fast_reader(file: str) -> Any:
    """gguf's reader, over an ordinary array: it slices its file some hundred thousand times, and a
    slice of a memmap takes three times as long."""
    import gguf
    import numpy as np

    class Reader(gguf.GGUFReader):
        @property
        def data(self) -> np.ndarray:  # type: ignore[override]
            return self._plain

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._plain = mapped.view(np.ndarray)  # the map stays, as its base

        def _get(self, offset: Any, dtype: Any, count: Any = 1, *more: Any, **named: Any) -> Any:
            found = super()._get(offset, dtype, count, *more, **named)
            if len(found) < count:  # gguf's own goes on, up to any count that the file names
                raise EOFError("it ends before what it says it holds")
            return found.copy() if found.nbytes < SMALL else found

    return Reader(file)


def check_places(reader: Any) -> None:
    """Raise unless each tensor has bytes of its own, where the file's alignment allows it: others
    would be read as numbers that they are not."""
    end = reader.data_offset
    for tensor in sorted(reader.tensors, key=lambda t: (t.data_offset, t.n_bytes)):
        start = tensor.data_offset
        if start < end or (start - reader.data_offset) % reader.alignment:
            raise ValueError(f"the bytes of {tensor.name} are not its own")
        end = start + tensor.n_bytes


def their_name(name: str) -> str:
    """As transformers calls it; a name that we do not know stays, and is refused later."""
    if name in OUTER:
        return OUTER[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in INNER:
        return f"model.layers.{parts[1]}.{INNER[parts[2]]}.{parts[3]}"
    return name


def checked_facts(file: Path, *rest: Any) -> dict[str, Any]:
    """As facts_of, of a file that anybody may have made."""
    try:
        return facts_of(file, *rest)
    except ArmdError:
        raise
    except WRONG_KINDS as error:
        raise ArmdError(f"{file} is damaged ({error!r}); download it again") from None


def facts_of(
    file: Path, fields: Mapping[str, Any], tensors: Mapping[str, Any], factors: list | None
) -> dict[str, Any]:
    """The metadata as transformers would write it."""
    kind = str(fields.get("general.architecture", "unknown"))
    check_family(str(file), kind)

    def get(name: str, default: Any = None) -> Any:
        return fields.get(f"{kind}.{name}", default)

    def need(name: str) -> Any:
        if get(name) is None:
            raise ArmdError(f"{file} does not say {kind}.{name}; download it again")
        return get(name)

    heads = need("attention.head_count")
    if isinstance(heads, list):
        refuse(str(file), "layers of unlike sizes")
    width = get("attention.key_length", need("embedding_length") // heads)
    if get("expert_count"):
        refuse(str(file), "a mixture of experts")
    if get("rope.dimension_count", width) != width:
        refuse(str(file), "partial rotary positions")
    for name, what in OTHERS.items():
        if get(name):
            refuse(str(file), what)
    if not get("attention.causal", True):
        refuse(str(file), "attention to both sides")
    base = float(get("rope.freq_base", 10000.0))
    return {
        "model_type": kind,
        "vocab_size": int(tensors["model.embed_tokens.weight"].shape[1]),
        "hidden_size": need("embedding_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": width,
        "intermediate_size": need("feed_forward_length"),
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "rope_parameters": scaling(file, get, base, width, factors),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }


def scaling(
    file: Path, get: Callable[..., Any], base: float, width: int, factors: list | None
) -> dict[str, Any]:
    # files without a type are of linear scaling, as llama.cpp reads them
    factor = float(get("rope.scaling.factor", get("rope.scale_linear", 0.0)))
    found = get("rope.scaling.type", "none" if factor in (0.0, 1.0) else "linear")
    if found != "none":
        return {"rope_theta": base, "rope_type": found}  # refused where configs are checked
    if factors is None:
        return {"rope_theta": base, "rope_type": "default"}
    for known in LLAMA3_KNOWN:
        made = llama3_factors(base, width, known)
        if max(abs(a - b) / b for a, b in zip(factors, made, strict=True)) < 1e-4:
            return {"rope_theta": base, "rope_type": "llama3", **known}
    return {"rope_theta": base, "rope_type": FREQUENCIES}
