"""The tokenizer in a GGUF file, as llama.cpp reads it: transformers adds tokens that the file has
not, and asks neither for a space before a text nor for words that are taken whole."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from ..data.tokenizer_files import os_errors
from ..errors import ArmdError, first_line
from ..runtime.foreign_code import no_foreign_code
from .gguf_words import cut_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPACE = "\u2581"
CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens that are found in a text before it is cut."""


def save_tokenizer(file: Path, fields: Mapping[str, Any], out: Path) -> None:
    """The tokenizer in the file, and its chat template, as files that transformers reads."""
    from transformers import AutoTokenizer

    try:
        with alone(file) as folder, no_foreign_code(file):
            found = AutoTokenizer.from_pretrained(
                folder, gguf_file=file.name, trust_remote_code=False
            )
        exact = as_in_file(found.backend_tokenizer, fields)
    except Exception as error:  # the readers raise many kinds
        reason = first_line(error)
        raise ArmdError(f"cannot read the tokenizer in {file}: {reason}") from None
    if template := fields.get("tokenizer.chat_template"):
        found.chat_template = str(template.contents())
    with os_errors():
        found.save_pretrained(str(out))
        exact.save(str(out / "tokenizer.json"))


def as_in_file(backend: Tokenizer, fields: Mapping[str, Any]) -> Tokenizer:
    """What transformers made of the file, with the file's own tokens and llama.cpp's rules."""

    def get(name: str, default: Any) -> Any:
        found = fields.get(f"tokenizer.ggml.{name}")
        return default if found is None else found.contents()

    saved = json.loads(backend.to_str())
    if saved["model"]["type"] == "BPE":
        with_own_tokens(saved, get("tokens", []), get("token_type", []))
    if (saved["pre_tokenizer"] or {}).get("type") == "Metaspace":
        with_spaces(saved, before=bool(get("add_space_prefix", True)))
    if get("model", "") == "gpt2":
        cut_as(saved, str(get("pre", "")))
    return Tokenizer.from_str(json.dumps(saved))


def with_own_tokens(saved: dict[str, Any], tokens: list[str], kinds: list[int]) -> None:
    """No token beyond the file's: transformers adds those that its classes have by default. And
    each that is found in a text is spelled as there, whatever its characters."""
    words = {number: word for word, number in saved["model"]["vocab"].items()}
    added = {token["id"]: token for token in saved["added_tokens"] if token["id"] < len(tokens)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):
        if kind in (CONTROL, USER_DEFINED) and token:
            words[number] = token
            new = {"id": number, "content": token, "special": kind == CONTROL, **plain}
            added.setdefault(number, new)
    saved["model"]["vocab"] = {word: number for number, word in words.items()}
    saved["added_tokens"] = [added[number] for number in sorted(added)]


def with_spaces(saved: dict[str, Any], *, before: bool) -> None:
    """Spaces as sentencepiece and llama.cpp have them: one more `before` the text and after each
    special token, or none. Metaspace adds none to a text that begins with one."""
    prepend = [{"type": "Prepend", "prepend": SPACE}] if before else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    saved["normalizer"] = {"type": "Sequence", "normalizers": [*prepend, replace]}
    saved["pre_tokenizer"] = None
    if not before:
        parts = saved["decoder"]["decoders"]
        saved["decoder"]["decoders"] = [part for part in parts if part["type"] != "Strip"]


@contextmanager
def alone(file: Path) -> Iterator[str]:
    """A folder where the file lies by itself: of a tokenizer or an adapter beside it, transformers
    would read those."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, file.name).symlink_to(file.resolve())
        yield folder
