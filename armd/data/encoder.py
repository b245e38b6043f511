"""Text to token bytes, fast. `tokenizers` reaches about 0.3 million GPT-2 tokens/s a core; most
of that is spent finding and merging words it has seen before. So words are found by `re` here,
each new one is encoded by `tokenizers` itself, and its bytes are remembered."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from .text_pieces import SPACE
from .tokenizer import no_panic

PUNCTUATION = r"!-/:-@\[-`{-~\x00-\x08\x0e-\x1f\x7f"
ASCII_ENDS = r"(?![^\x00-\x7f])"

# GPT-2's split. ASCII words by the plain classes; a word that touches any other character goes,
# up to the next space, to `tokenizers`, which knows the letters of all scripts.
GPT2_WORDS = re.compile(
    rf" ?[A-Za-z]++{ASCII_ENDS}|'(?:[sdmt]|ll|ve|re)"
    rf"| ?[{PUNCTUATION}]++{ASCII_ENDS}| ?[0-9]++{ASCII_ENDS}"
    rf"| ?[^{SPACE}]+|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
)
BERT_WORDS = re.compile(r"[^ \t\n\r]+")
CHARACTERS = re.compile(r".", re.DOTALL)

LONGEST_REMEMBERED = 40
MOST_REMEMBERED = 1 << 18


def word_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """The pattern whose matches this tokenizer encodes one by one, each alone as in its text;
    None if there is none that we know of."""
    added = tokenizer.get_added_tokens_decoder().values()
    if not all(token.special for token in added):
        return None  # matched anywhere in the text, across words
    normalizer, words = state(tokenizer.normalizer), state(tokenizer.pre_tokenizer)
    if words.get("type") == "ByteLevel" and not normalizer and not words["add_prefix_space"]:
        if words["use_regex"]:
            return None if getattr(tokenizer.model, "dropout", None) else GPT2_WORDS
        model = json.loads(tokenizer.to_str())["model"]
        return CHARACTERS if model["type"] == "BPE" and not model["merges"] else None
    bert = normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"]
    return BERT_WORDS if bert and words.get("type") == "BertPreTokenizer" else None


def state(part: Any) -> dict[str, Any]:
    """What a normalizer or pre-tokenizer is made of."""
    return json.loads(part.__getstate__()) if part is not None else {}


class Words(dict[str, bytes]):
    """Token bytes of the words seen so far; a new word is encoded on the first look."""

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype):
        super().__init__()
        self.tokenizer, self.dtype = tokenizer, dtype

    def __missing__(self, word: str) -> bytes:
        ids = self.tokenizer.encode(word, add_special_tokens=False).ids
        tokens = np.array(ids, dtype=self.dtype).tobytes()
        if len(word) <= LONGEST_REMEMBERED:
            if len(self) >= MOST_REMEMBERED:
                self.clear()  # bounded memory; the common words are back at once
            self[word] = tokens
        return tokens


class Encoder:
    """Texts to token bytes, equal to what `tokenizers` gives. Special tokens that are spelled
    out in a text are text: only `prepare` writes EOS and pads."""

    def __init__(self, tokenizer_json: str, dtype: np.dtype):
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.dtype = dtype
        self.pattern = word_pattern(self.tokenizer)
        self.words = Words(self.tokenizer, dtype)

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        if self.pattern is not None:
            find, look = self.pattern.findall, self.words.__getitem__
            return [b"".join(map(look, find(text))) for text in texts]
        with no_panic():
            encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype).tobytes() for encoding in encodings]
