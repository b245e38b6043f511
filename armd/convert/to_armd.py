"""From a pretrained model of the Llama family to ours: the same model left to right, and one that
can be asked in any order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import ArmdError
from ..runtime.atomic_files import write_sums
from ..runtime.atomic_folders import new_folder
from .adapter import Merging, right_offset_of
from .family import config_for
from .layout import Piece, interleaved, layout, new_weights
from .source import Source, open_source
from .weight_file import WEIGHTS, check_room, write_one_by_one

if TYPE_CHECKING:
    from ..model.configuration_armd import ArmdConfig
    from ..model.shapes import Tensor

NOTES = "source.json"


@dataclass(frozen=True)
class Converted:
    """What a conversion did."""

    folder: Path
    config: ArmdConfig
    source: Source
    bos: str


def convert(
    word: str, out: Path, *, max_length: int | None = None, adapter: Path | None = None
) -> Converted:
    """Write the model that `word` names to the new folder `out`, with tokenizer and chat template.
    The adapter in the folder `adapter` is added on the way. All that can be seen to fail fails
    before anything is written; what fails later leaves nothing behind."""
    source = open_source(word)
    merging = Merging(adapter) if adapter else None
    config = config_for(source.name, source.facts, max_length)
    if adapter:
        config.right_offset = min(right_offset_of(adapter), config.max_length)
    if merging:
        config.adapter_rank = merging.rank
    pieces = layout(config)
    check_tensors(source, pieces)
    check_room(out, source.shapes.values(), source.dtype)
    with new_folder(out) as aside:
        bos, token = tokenizer_of(source, config.vocab_size, aside)
        write_weights(source, config, pieces, aside / WEIGHTS, bos, merging)
        write_config(source, config, aside)
        source.check()
        write_sums(aside)
    return Converted(out, config, source, token)


def check_tensors(source: Source, pieces: dict[str, list[Piece]]) -> None:
    """Each tensor has its place, and each place its tensor, of the right shape."""
    wanted = {piece.name: piece.shape for parts in pieces.values() for piece in parts}
    tied = "head.weight" not in pieces
    for name, shape in source.shapes.items():
        if tied and name == "lm_head.weight" and not same_head(source):
            raise ArmdError(
                f"{source.name} has an lm_head.weight of its own, but its config says "
                "tie_word_embeddings; say false there, or leave that tensor out"
            )
        if name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight"):
            continue
        if name not in wanted:
            raise ArmdError(
                f"{source.name} holds '{name}', for which armd has no place; it cannot be converted"
            )
        if tuple(shape) != wanted[name]:
            raise ArmdError(
                f"'{name}' of {source.name} is {tuple(shape)}, but its config says {wanted[name]}; "
                "copy it again"
            )
    if missing := wanted.keys() - source.shapes.keys():
        raise ArmdError(f"{source.name} lacks '{min(missing)}'; is it saved only in part?")


def same_head(source: Source) -> bool:
    """Whether the head is the embedding."""
    import torch

    embedding = "model.embed_tokens.weight"
    if embedding not in source.shapes:
        return True  # which is said elsewhere
    return torch.equal(source.read("lm_head.weight"), source.read(embedding))


def tokenizer_of(source: Source, vocab_size: int, folder: Path) -> tuple[int, str]:
    """Save the tokenizer; the id and the text of the token that opens a text: BOS, else EOS."""
    from ..data.tokenizer import from_folder

    source.save_tokenizer(folder)
    found = from_folder(folder)
    if found.vocab_size > vocab_size:
        raise ArmdError(
            f"the tokenizer of {source.name} writes {found.vocab_size} tokens, but the model knows "
            f"{vocab_size}; put the model's own tokenizer there"
        )
    token = found.special.get("bos_token") or found.special.get("eos_token")
    number = None if token is None else found.backend.token_to_id(token)
    if number is None or token is None:
        number = source.facts.get("bos_token_id")
        token = None if number is None else found.backend.id_to_token(number)
    if number is None or token is None:
        raise ArmdError(f"the tokenizer of {source.name} names neither a BOS nor an EOS token")
    return number, token


def write_weights(
    source: Source,
    config: ArmdConfig,
    pieces: dict[str, list[Piece]],
    path: Path,
    bos: int,
    merging: Merging | None,
) -> None:
    embedding = source.read("model.embed_tokens.weight").to(source.dtype)
    new = new_weights(config, embedding, bos)
    if merging is not None:
        new |= {name: low.to(source.dtype) for name, low in merging.added.items()}
    del embedding
    shapes = {name: stacked_shape(parts) for name, parts in pieces.items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in new.items()}
    if merging is not None:
        merging.check_shapes(shapes)

    def make(name: str) -> Tensor:
        made = new[name] if name in new else stacked(source, pieces[name])
        return made if merging is None else merging(name, made)

    write_one_by_one(path, shapes, source.dtype, make)
    if merging is not None:
        merging.check_base()


def stacked_shape(parts: list[Piece]) -> tuple[int, ...]:
    return (sum(piece.rows for piece in parts), *parts[0].shape[1:])


def stacked(source: Source, parts: list[Piece]) -> Tensor:
    rows = []
    for piece in parts:
        tensor = source.read(piece.name)
        rotated = piece.heads and source.half_split
        rows.append(interleaved(tensor, piece.heads) if rotated else tensor)
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def write_config(source: Source, config: ArmdConfig, folder: Path) -> None:
    """config.json, our code beside it so that it loads without armd, and what the way back needs"""
    from ..saved_folder import finish_folder

    config.dtype = source.dtype
    count = sum(torch.Size(shape).numel() for shape in source.shapes.values())
    finish_folder(folder, config, weights=count, about={"converted from": Path(source.name).name})
    facts = {"source": Path(source.name).name, "model_type": source.facts["model_type"]}
    longest = {"max_position_embeddings": source.facts["max_position_embeddings"]}
    text = json.dumps({**facts, **longest, **source.notes}, indent=2)
    (folder / NOTES).write_text(text + "\n", "utf-8")
