"""The detokenisers of SEDD, RADD, MDLM and BD3-LM, with their gaps: their published figures are
computed on. All four projects have the same rules. Each rule runs once, in this order. Ours, in
`detokenize.py`, run until nothing changes.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial

Rule = tuple[re.Pattern[str], str]


def literal(*pairs: tuple[str, str]) -> list[Rule]:
    """Plain replacements, as str.replace makes them."""
    return [(re.compile(re.escape(old)), new.replace("\\", r"\\")) for old, new in pairs]


def pattern(*pairs: tuple[str, str]) -> list[Rule]:
    return [(re.compile(old), new) for old, new in pairs]


def joined(marks: str) -> list[Rule]:
    """No space before a mark that stands between two spaces."""
    return literal(*((f" {mark} ", f"{mark} ") for mark in marks))


WIKITEXT = [
    *literal(("s '", "s'")),
    *pattern(("/' [0-9]/", "/'[0-9]/")),  # meant to join '90; it matches only between slashes
    *literal((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")),
    *joined(":;.!?,"),
    *pattern(
        (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
        (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
        (r"{\s*([^}]*?)\s*}", r"{\1}"),
        (r'"\s*([^"]*?)\s*"', r'"\1"'),
        (r"'\s*([^']*?)\s*'", r"'\1'"),
    ),
    *literal(("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" ° ", "°")),
    *literal((" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")),
]
PTB = [
    *literal((" 's", "'s"), ("s ' ", "s' "), (" n't", "n't"), (" \n ", "\n"), ("\\/", "/")),
    *literal((" N ", " 1 ")) * 10,
    *literal(("$ 1", "$1"), ("# 1", "#1"), ("<unk>", "?")),
]
LM1B = [
    *literal(("http : / / ", "http://"), ("https : / / ", "https://")),
    *pattern((r" '(\w+)", r"'\1"), (r" (\w+) \. ", r" \1. "), (r" (\w+) \.$", r" \1.")),
    *joined("?"),
    *pattern((r" \?$", "?")),
    *joined("!"),
    *pattern((r" !$", "!")),
    *joined(",:;"),
    *literal((" / ", "/")),
    *pattern(
        (r'" ([^"]+) "', r'"\1"'),
        (r"' ([^']+) '", r"'\1'"),
        (r"\( ([^()]+) \)", r"(\1)"),
        (r"\[ ([^\[\]]+) \]", r"[\1]"),
    ),
    *literal(("$ ", "$"), ("£ ", "£")),
]
DOUBLE_QUOTES = str.maketrans("“”", '""')


def once(rules: Iterable[Rule], text: str) -> str:
    for found, replacement in rules:
        text = found.sub(replacement, text)
    return text


def lambada(passage: str) -> str:
    """Double curly quotes become straight; single ones stay curly."""
    return "\n" + passage.translate(DOUBLE_QUOTES).strip()


PEER_DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "wikitext2": partial(once, WIKITEXT),
    "wikitext103": partial(once, WIKITEXT),
    "ptb": partial(once, PTB),
    "lm1b": partial(once, LM1B),
    "lambada": lambada,
}
