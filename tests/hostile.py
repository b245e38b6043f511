"""A tokenizer whose tokens would run if somebody took them for markup."""

from tokenizers import models

from armd.data.tokenizer import TextTokenizer, byte_level, byte_symbols, with_ends

HOSTILE = (
    "<script>window.hacked={}</script>",
    "<img src=x onerror=window.hacked={}>",
    "</span><svg onload=window.hacked={}>",
    '"><iframe srcdoc="<script>top.hacked={}</script>">',
)


def tokenizer() -> TextTokenizer:
    """All bytes, and as many tokens that would run if the page took them for markup."""
    symbols = byte_symbols()
    hostile = [HOSTILE[i % 4].format(i) for i in range(256)]
    words = ["".join(symbols[byte] for byte in word.encode()) for word in hostile]
    vocabulary = {word: number for number, word in enumerate([*symbols, *words])}
    return with_ends(
        TextTokenizer(byte_level(models.BPE(vocab=vocabulary, merges=[]), split=False), {}),
        rows=False,
    )
