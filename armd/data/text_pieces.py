"""Where a text may be cut, and its parts have the words of the whole."""

import re
from collections.abc import Iterable, Iterator

# The Unicode White_Space characters: what \s means to `tokenizers` (Python's \s has four more).
SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# No word crosses from a character that is no space to one that is.
CUT = re.compile(rf"(?<=[^{SPACE}])(?=[ \n])")
LONG_WORD = re.compile(r"\S{4096}|\s{4096}")
TRAINING_CHARACTERS = 1 << 16
"""Of a part of a document: training takes some 100 bytes of memory for each that it has in hand."""


def pieces(text: str, size: int) -> Iterator[str]:
    """A long text in parts of about this size."""
    start = 0
    while len(text) - start > size:
        cut = CUT.search(text, start + size)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def for_training(texts: Iterable[str]) -> Iterator[str]:
    """Texts in parts. A word that is longer than any is cut: training takes time by the square of a
    word's length, and no signal interrupts it."""
    for text in texts:
        for part in pieces(text, TRAINING_CHARACTERS):
            start = 0
            for long in LONG_WORD.finditer(part):
                yield part[start : long.end()]
                start = long.end()
            yield part[start:]
