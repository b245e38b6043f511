"""Templates: a text with blanks, "The ____ jumped over ____.", as tokens and what is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import ArmdError
from ..runtime.numbers import whole_number

if TYPE_CHECKING:
    import torch

# a space before a blank goes with it: tokens carry the space before a word
BLANK = re.compile(r" ?_{2,}")
LONGEST = 8
"""Tokens that a blank is drawn to have, at most; and that it can be said to have."""
MOST = 1_000_000
ANCHORS = ("\n", "|", "0", "a", ".")
"""A tokenizer may join one with what follows, or read it as a space: most of them decide."""

Encode = Callable[[str], Sequence[int]]


def parts(template: str, mark: str | None = None) -> list[str]:
    """The text around the blanks: one part more than there are blanks; parts may be empty. `mark`
    is another one than underscores."""
    found = (re.compile(f" ?{re.escape(mark)}") if mark else BLANK).split(template)
    if len(found) < 2:
        raise ArmdError(
            f"no blank in the template {template[:40]!r}; write "
            f"{mark or 'two or more underscores'} where text is to be filled in"
        )
    return found


def blank_lengths(text: str) -> tuple[int, ...] | None:
    """What --blank-lengths says: "5" for all blanks, "3,5" one for each; empty: to be drawn."""
    if not text:
        return None
    found = [whole_number(word, 1, MOST) for word in text.split(",")]
    if None in found:
        raise ArmdError(f"blank lengths '{text[:40]}' must be numbers of tokens, such as 4 or 3,5")
    return tuple(filter(None, found))


def behind_text(encode: Encode) -> Encode:
    """`encode`, for text that stands behind other text. Tokenizers of the sentencepiece kind put a
    space before every text they are given; behind an anchor, whose tokens are cut off, they do
    not."""

    def continued(text: str) -> list[int]:
        found = Counter[tuple[int, ...]]()
        for anchor in ANCHORS:
            first, both = tuple(encode(anchor)), tuple(encode(anchor + text))
            if first and both[: len(first)] == first:
                found[both[len(first) :]] += 1
        return list(found.most_common(1)[0][0] if found else encode(text))

    return encode if continued("a") == list(encode("a")) else continued


def fill_in(
    template: str,
    encode: Encode,
    *,
    lengths: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    mark: str | None = None,
) -> tuple[list[int], list[bool]]:
    """Tokens and which of them are known. `lengths`: tokens of the blanks, one number for all or
    one for each; without it, 1 to 8, drawn from the generator."""
    import torch

    around = parts(template, mark)
    blanks = len(around) - 1
    if lengths is None:
        lengths = torch.randint(1, LONGEST + 1, (blanks,), generator=generator).tolist()
    elif len(lengths) == 1:
        lengths = [*lengths] * blanks
    if not all(type(length) is int and 0 < length <= MOST for length in lengths):
        raise ArmdError(f"blank lengths {list(lengths)} must be whole numbers of tokens, above 0")
    if len(lengths) != blanks:
        raise ArmdError(
            f"{len(lengths)} blank lengths do not fit {blanks} blanks; give one for all, or "
            "one for each"
        )
    tokens: list[int] = []
    known: list[bool] = []
    behind = behind_text(encode)
    for part, length in zip(around, [*lengths, 0], strict=True):
        given = list((behind if known else encode)(part)) if part else []
        tokens += given + [0] * length
        known += [True] * len(given) + [False] * length
    return tokens, known
