"""How a text is cut into words before BPE merges them: llama.cpp's names (tokenizer.ggml.pre), and
the pre-tokenizers of tokenizers that cut so."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models

from ..errors import ArmdError

_ENDS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*)"
_DIGITS = {"type": "Digits", "individual_digits": True}


def _bytes(*, gpt2: bool) -> dict[str, Any]:
    """Words to bytes; `gpt2`: cut by its pattern before."""
    plain = {"add_prefix_space": False, "trim_offsets": True}
    return {"type": "ByteLevel", **plain, "use_regex": gpt2}


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _split(pattern: str) -> dict[str, Any]:
    words = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _sequence({"type": "Split", **words}, _bytes(gpt2=False))


# a way of cutting, as tokenizers saves it
WAYS: dict[str, dict[str, Any]] = {
    "gpt-2": _bytes(gpt2=True),
    "smollm": _sequence(_DIGITS, _bytes(gpt2=True)),
    "llama-bpe": _split(_SHORT + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _ENDS),
    "qwen2": _split(_SHORT + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _ENDS),
    "tekken": _split(_CASED + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _ENDS),
}
WAYS["dbrx"] = WAYS["llama-bpe"]
WHOLE_WORDS = ("llama-bpe", "tekken")
"""A word of the vocabulary is taken whole with these, by whatever merges it could be made."""
SAME = {
    "gpt-2": ("mpt", "olmo", "jais", "trillion", "exaone4"),
    "smollm": ("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    "llama-bpe": ("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "dbrx": ("smaug-bpe",),
    "qwen2": ("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"),
}
"""Other names of the same ways."""
_LETTERS = ("a", "S", "'", "1", "2", " ", "\n", "\t", ".", "/", "é", "\u0301", "中")


def cut_as(saved: dict[str, Any], name: str) -> None:
    """Make a saved BPE tokenizer cut text as a GGUF file says. llama.cpp refuses names that it does
    not know, and warns where there is none: other words would be other tokens."""
    known = next((way for way in WAYS if name == way or name in SAME.get(way, ())), None)
    if known is None:
        said = f"'{name[:40]}', which armd does not know" if name else "not said"
        raise ArmdError(f"how text is cut into words is {said}; convert the model's own folder")
    saved["pre_tokenizer"] = WAYS[known]
    saved["model"]["ignore_merges"] = known in WHOLE_WORDS


def name_for(saved: dict[str, Any]) -> str:
    """llama.cpp's name for how a saved tokenizer cuts text: found by what it does."""
    whole, merges = bool(saved["model"].get("ignore_merges")), saved["model"].get("merges")
    cutter = json.dumps(saved.get("pre_tokenizer"))
    if not merges and "ByteLevel" in cutter and '"add_prefix_space": true' not in cutter:
        return "gpt-2"  # each token is a byte, however text is cut
    cut = words_of(cutter)
    for name in WAYS:
        if whole == (name in WHOLE_WORDS) and cut == words_of(json.dumps(WAYS[name])):
            return name
    raise ArmdError(
        "llama.cpp has no name for how this tokenizer cuts text into words, or none that armd "
        f"knows ({', '.join(WAYS)}); use --to llama"
    )


@cache
def words_of(pre_tokenizer: str) -> list[list[str]]:
    """How it cuts all texts of four characters of different kinds, and some longer ones."""
    bare = json.loads(Tokenizer(models.BPE()).to_str())
    cutter = Tokenizer.from_str(json.dumps(bare | {"pre_tokenizer": json.loads(pre_tokenizer)}))
    texts = ["".join(letters) for letters in itertools.product(_LETTERS, repeat=4)]
    texts += ["12345678", "we'll we'LL", "a    b\n\n\n  c", "HTTPServer's", " \u00a0x", "½²Ⅷ"]
    if cutter.pre_tokenizer is None:
        return [[text] for text in texts]
    return [[word for word, _ in cutter.pre_tokenizer.pre_tokenize_str(text)] for text in texts]
