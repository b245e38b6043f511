"""Our model's tokenizer in a GGUF file, as llama.cpp reads it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.tokenizer import from_folder
from ..errors import ArmdError
from ..runtime.standard_streams import printable
from .gguf_tokenizer import SPACE
from .gguf_words import name_for
from .source import read_json
from .to_llama import Ours, bos_and_eos, copy_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def add_tokenizer(writer: Any, ours: Ours) -> None:
    """Tokens, their kinds, merges, special tokens and the chat template."""
    import gguf

    file = ours.folder / "tokenizer.json"
    if not file.is_file():
        raise ArmdError(f"no tokenizer.json in {ours.folder}; copy the model's tokenizer there")
    saved = read_json(file, str(ours.folder))
    if saved["model"].get("type") != "BPE":
        raise ArmdError(f"a {saved['model'].get('type')} tokenizer has no place in a GGUF file")
    check_pieces(saved)
    vocabulary = {number: token for token, number in saved["model"]["vocab"].items()}
    added = {token["id"]: token for token in saved["added_tokens"]}
    spoken = saved["model"].get("byte_fallback", False)  # as sentencepiece has it
    words, kinds = [], []
    for number in range(ours.config.vocab_size):
        token = added[number]["content"] if number in added else vocabulary.get(number)
        words.append(f"[PAD{number}]" if token is None else token)
        kinds.append(token_kind(token, added.get(number), spoken))
    if not spoken:
        check_normalizer(saved.get("normalizer"))
    writer.add_tokenizer_model("llama" if spoken else "gpt2")
    writer.add_tokenizer_pre("default" if spoken else ours.notes.get("gguf_pre") or name_for(saved))
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    merges = not spoken and bool(saved["model"].get("merges"))
    if spoken:
        writer.add_token_scores(scores_of(saved, len(words)))
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


def scores_of(saved: dict[str, Any], count: int) -> list[float]:
    """By which a reader joins two pieces, the highest first, wherever the whole is a token: such
    that it joins them in the order of the merges. Warns where merges name fewer pairs."""
    ids, merges = saved["model"]["vocab"], saved["model"]["merges"]
    pairs = [tuple(pair.split(" ", 1) if isinstance(pair, str) else pair) for pair in merges]
    made = [whole for whole in dict.fromkeys(map("".join, pairs)) if ids.get(whole, count) < count]
    scores = [-float(number) for number in range(count)]
    for whole, place in zip(made, sorted(ids[whole] for whole in made), strict=True):
        scores[ids[whole]] = -float(place)
    plain = ids.keys() - {token["content"] for token in saved["added_tokens"]}
    splits = ((word[:at], word[at:]) for word in plain for at in range(1, len(word)))
    if not {pair for pair in splits if ids.keys() >= set(pair)} <= set(pairs):
        print(
            "armd: warning: the tokenizer joins fewer pieces than readers of a GGUF file, so that "
            "some texts get other tokens there",
            file=sys.stderr,
        )
    return scores


def check_pieces(saved: dict[str, Any]) -> None:
    """Raise for marks inside of words, which a GGUF file cannot say; warn where added tokens take
    the spaces beside them, or stand for whole words alone."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if mark := saved["model"].get(name):
            raise ArmdError(
                f"the tokenizer marks pieces with '{mark}' ({name}), for which a GGUF file has no "
                "place; use --to llama"
            )
    special = ("lstrip", "rstrip", "single_word")
    found = [one["content"] for one in saved["added_tokens"] if any(map(one.get, special))]
    if found:
        print(
            f"armd: warning: the token {printable(str(found[0]))} is found in fewer places by "
            "readers of a GGUF file, or without the spaces beside it (lstrip, rstrip or "
            "single_word)",
            file=sys.stderr,
        )


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
