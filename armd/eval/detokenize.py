"""Undo the tokenisation of the benchmark texts, row by row, as the field does before scoring.

Each data set has a list of (pattern, replacement), applied until nothing changes: a rule may make
room for another (" N N " holds two numbers that share a space), and a second pass over a finished
text changes nothing.
"""

import re
from collections.abc import Callable

Replacement = str | Callable[[re.Match[str]], str]
Rules = list[tuple[re.Pattern[str], Replacement]]


def rules(*pairs: tuple[str, Replacement]) -> Rules:
    return [(re.compile(pattern), replacement) for pattern, replacement in pairs]


WIKITEXT = rules(
    (r" @([-,.])@ ", r"\1"),
    (r"s '(?= )", "s'"),
    (r" ([:;.!?,]) ", r"\1 "),
    (r"\( *([^()]*?) *\)", r"(\1)"),
    (r"\[ *([^\[\]]*?) *\]", r"[\1]"),
    (r"\{ *([^{}]*?) *\}", r"{\1}"),
    (r'" *([^"]*?) *"', r'"\1"'),
    (r"(?<= )' ([^']*?) '(?= |$)", r"'\1'"),
    (r"=( =)+", lambda found: "=" * found[0].count("=")),
    (r" °", "°"),
    (r" +\n", "\n"),
    (r"\n +", "\n"),
    (r" N ", " 1 "),
    (r" 's", "'s"),
)
# PTB has no question marks of its own: "?" is what <unk> becomes, a word, and is not joined.
PTB = rules(
    (r" ('s|n't|'re|'ve|'ll|'d|'m)\b", r"\1"),
    (r"s ' ", "s' "),
    (r" ([:;.!,]) ", r"\1 "),
    (r"\\/", "/"),
    (r" N ", " 1 "),
    (r"([$#]) (?=1)", r"\1"),
    (r"<unk>", "?"),
)
LM1B = rules(
    (r"(https?) : / / ", r"\1://"),
    (r" '(\w+)", r"'\1"),
    (r" n't\b", "n't"),
    (r" ([.?!])(?= |$)", r"\1"),
    (r" ([,:;]) ", r"\1 "),
    (r" / ", "/"),
    (r'" ([^"]+) "', r'"\1"'),
    (r"(?<= )' ([^']+) '", r"'\1'"),
    (r"\( ([^()]+) \)", r"(\1)"),
    (r"\[ ([^\[\]]+) \]", r"[\1]"),
    (r"([$£]) ", r"\1"),
)
STRAIGHT = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


def apply(table: Rules, text: str) -> str:
    """The rules, again and again until the text stays as it is. Every rule shortens the text or
    takes away one of its marks, so this ends."""
    before = None
    while before != text:
        before = text
        for pattern, replacement in table:
            text = pattern.sub(replacement, text)
    return text


def wikitext(row: str) -> str:
    return apply(WIKITEXT, row)


def ptb(row: str) -> str:
    return apply(PTB, row)


def lm1b(row: str) -> str:
    return apply(LM1B, row)


def lambada(row: str) -> str:
    """The passage as it is, quotes made straight, after a line break."""
    return "\n" + row.translate(STRAIGHT).strip()


def plain(row: str) -> str:
    return row


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "wikitext2": wikitext,
    "wikitext103": wikitext,
    "ptb": ptb,
    "lm1b": lm1b,
    "lambada": lambada,
}
