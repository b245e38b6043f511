"""From our model back to a LlamaForCausalLM folder (Qwen2ForCausalLM where there are biases): left
to right the same model, for everything that serves such models."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from ..data.source_ends import put_back_ends
from ..errors import ArmdError
from ..pretrained import check_saved, is_quantized, model_folder, saved_kind
from ..runtime.atomic_files import refuse_link, write_sums
from ..runtime.atomic_folders import new_folder, watched
from ..runtime.weight_files import weight_files
from .layout import Piece, apart, layout
from .source import TOKENIZER, read_json
from .to_armd import NOTES
from .weight_file import WEIGHTS, check_room, write_one_by_one

if TYPE_CHECKING:
    from ..model.configuration_armd import ArmdConfig
    from ..model.shapes import Tensor


@dataclass(frozen=True)
class Ours:
    """A folder of our model, its tensors read one at a time in the source's names and layout."""

    folder: Path
    config: ArmdConfig
    pieces: Mapping[str, list[Piece]]
    read: Callable[[str], Tensor]
    """One of the source's tensors, half-split."""
    dtype: torch.dtype
    notes: Mapping[str, Any]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {piece.name: piece.shape for parts in self.pieces.values() for piece in parts}

    @cached_property
    def bos_is_a_token(self) -> bool:
        """Whether the row before a text is some token's embedding, as a converted model has it. One
        that was trained here has learnt a row of its own, which no other format holds."""
        for file in weight_files(self.folder):
            with safe_open(file, "pt") as opened:
                if "bos" in opened.keys():  # noqa: SIM118
                    bos = opened.get_tensor("bos")
                    return bool((self.read("model.embed_tokens.weight") == bos).all(1).any())
        return True


def open_ours(run: str) -> Ours:
    """Our model in a run or folder; raises if it is not an autoregressive transformer read left to
    right."""
    from ..model.configuration_armd import ArmdConfig

    folder = model_folder(run)
    check = watched(folder)
    kind, _ = saved_kind(folder)
    if kind != "armd":
        raise ArmdError(f"{run} is a checkpoint of '{kind}', not of armd; name an armd folder")
    check_saved(folder)
    if is_quantized(folder):
        raise ArmdError(f"{run} is quantized; convert the model that it was made of")
    config = ArmdConfig.from_pretrained(folder)
    if config.query not in ("neighbor", "shift"):
        raise ArmdError(
            f"{run} has query '{config.query}', whose rows no Llama has; only neighbor and shift "
            "are autoregressive transformers left to right"
        )
    pieces = layout(config)
    place = {}
    for file in weight_files(folder):
        with safe_open(file, "pt") as opened:
            place |= dict.fromkeys(opened.keys(), file)
    if missing := pieces.keys() - place.keys():
        raise ArmdError(f"{folder} lacks '{min(missing)}'; copy or export it again")
    where = {piece.name: ours for ours, parts in pieces.items() for piece in parts}

    def whole(name: str) -> Tensor:
        with safe_open(place[name], "pt") as opened:
            tensor = opened.get_tensor(name)
        check()
        return tensor

    def read(name: str) -> Tensor:
        return apart(whole(where[name]), pieces[where[name]])[name]

    notes = read_json(folder / NOTES, run) if (folder / NOTES).is_file() else {}
    longest = notes.get("max_position_embeddings", 1)
    if type(longest) is not int or not 0 < longest < 1 << 31:
        raise ArmdError(f"{folder / NOTES} is damaged (max_position_embeddings); convert it again")
    return Ours(folder, config, pieces, read, whole("norm.weight").dtype, notes)


def to_llama(run: str, out: Path) -> Ours:
    """Write the folder `out`: config, safetensors, tokenizer and chat template."""
    ours = open_ours(run)
    check_bos(ours)
    check_room(out, ours.shapes.values(), ours.dtype)
    with new_folder(out) as aside:
        write_one_by_one(aside / WEIGHTS, ours.shapes, ours.dtype, ours.read)
        text = json.dumps(llama_config(ours), indent=2)
        (aside / "config.json").write_text(text + "\n", "utf-8")
        copy_tokenizer(ours.folder, aside)
        write_sums(aside)
    return ours


def copy_tokenizer(folder: Path, out: Path) -> None:
    """The tokenizer of our model, which adds to each text again what the source's added."""
    for name in TOKENIZER:
        if (folder / name).is_file():
            refuse_link(folder / name)
            shutil.copyfile(folder / name, out / name)
    put_back_ends(out)


def bos_and_eos(folder: Path) -> tuple[int | None, int | None]:
    from ..data.tokenizer import from_folder

    found = from_folder(folder)

    def number(role: str) -> int | None:
        token = found.special.get(role)
        return None if token is None else found.backend.token_to_id(token)

    return number("bos_token"), number("eos_token")


def check_bos(ours: Ours) -> None:
    """Our BOS row must be the embedding of some token, or a text could not be begun there."""
    if not ours.bos_is_a_token:
        print(
            "armd: warning: BOS is no token's embedding here, so texts begin otherwise there",
            file=sys.stderr,
        )


def llama_config(ours: Ours) -> dict[str, Any]:
    """What transformers needs to know."""
    c = ours.config
    bos, eos = bos_and_eos(ours.folder)
    rope: dict[str, Any] = {"rope_theta": c.rope_base, "rope_type": "default"}
    if c.rope_llama3:
        rope |= {"rope_type": "llama3", **c.rope_llama3}
    name, kind = ("Qwen2ForCausalLM", "qwen2") if c.qkv_bias else ("LlamaForCausalLM", "llama")
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": c.vocab_size,
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads,
        "head_dim": c.d_head,
        "hidden_act": "silu",
        "max_position_embeddings": ours.notes.get("max_position_embeddings", c.max_length),
        "rms_norm_eps": c.norm_eps,
        "rope_parameters": rope,
        "rope_theta": c.rope_base,
        **({"rope_scaling": rope} if c.rope_llama3 else {}),
        "tie_word_embeddings": c.tie_word_embeddings,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "dtype": str(ours.dtype).removeprefix("torch."),
    }
