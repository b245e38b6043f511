"""From rows of text to windows of tokens: what each protocol scores, counts and drops."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..errors import ArmdError
from .detokenize import DETOKENIZERS
from .peer_detokenize import PEER_DETOKENIZERS

Encode = Callable[[list[str]], list[list[int]]]
AT_ONCE = 64
PEERS_GROUP = 1000
"""Rows that the peers' data loaders cut into windows at a time, dropping each group's tail."""

_NAMES: tuple[str, ...] = ("lambada", "wikitext2", "ptb", "wikitext103", "lm1b")
_TEST: dict[str, str] = dict.fromkeys(_NAMES, "test")
_VALIDATION: dict[str, str] = _TEST | dict.fromkeys(_NAMES[1:4], "validation")


@dataclass(frozen=True)
class Protocol:
    """How a benchmark is cut and counted."""

    name: str
    splits: dict[str, str]
    row_end: bool = True
    """An EOS after every row, empty rows too."""
    wrapped: bool = False
    """A window is BOS, window - 2 tokens, EOS; otherwise it is a plain cut."""
    tail: bool = True
    """The tokens left over, fewer than a window, are scored too."""
    group: int | None = None
    """Rows cut at a time, the tail of each group dropped; None: the whole text at once."""
    first: bool = True
    """The first token of a window is scored, where the model can score it."""
    by_row: bool = False
    """Each row is a window of its own, cut to its length, never joined with the next."""
    free_bos: bool = False
    """The peers' windows begin with a BOS that is the same everywhere. It is not counted here; the
    figure that counts it, at no cost, is given beside."""
    detokenizers: Mapping[str, Callable[[str], str]] = field(default_factory=lambda: DETOKENIZERS)
    """By data set."""
    window: int = 1024
    """Tokens in a window, unless the model takes fewer."""
    data: str = "lambada,wikitext2,ptb,wikitext103,lm1b"
    """What is scored if nothing is named."""


_PEERS: dict[str, Any] = {"tail": False, "group": PEERS_GROUP, "detokenizers": PEER_DETOKENIZERS}
_LM1B: dict[str, Any] = {"free_bos": True, "window": 128, "data": "lm1b"}
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("exact", _TEST),
        Protocol("sedd", _TEST | {"wikitext2": "train"}, **_PEERS),
        Protocol("mdlm", _VALIDATION, wrapped=True, **_PEERS),
        Protocol("bd3lm", _VALIDATION, row_end=False, wrapped=True, first=False, **_PEERS),
        Protocol("rows", _TEST, by_row=True),
        Protocol("lm1b", _TEST, by_row=True, detokenizers=PEER_DETOKENIZERS, **_LM1B),
        Protocol("lm1b-packed", _TEST, wrapped=True, first=False, **_PEERS, **_LM1B),
    )
}


@dataclass(frozen=True)
class Window:
    index: int
    ids: list[int]


@dataclass
class Tally:
    """What was read and cut so far."""

    rows: int = 0
    text_bytes: int = 0
    tokens: int = 0
    """Tokens of the text, row ends among them, the BOS and EOS around a window not."""
    windows: int = 0
    dropped: int = 0
    _rest: list[int] = field(default_factory=list)


def cut(
    protocol: Protocol,
    rows: Iterable[str | None],
    encode: Encode,
    *,
    window: int,
    bos: int,
    eos: int,
    tally: Tally,
    running: bool = False,
) -> Iterator[Window]:
    """Stream the windows of a text; the tally is complete when they are used up. In running text
    rows are lines that follow each other, and None is the end of a document; they are encoded
    together, because tokens may cross from line to line, unless each row is a window: then lines
    have no ends. Documents without text are left out. All of this as armd prepare does."""
    room = window - 2 if protocol.wrapped else window - (protocol.by_row and protocol.free_bos)
    if room < 1:
        raise ArmdError(f"a window of {window} tokens holds none of the text; raise --window")
    if running and protocol.by_row:
        rows, running = (row.rstrip("\r\n") for row in rows if row and row.strip()), False
    rows = documents(rows) if running else iter(rows)
    while some := list(islice(rows, 1 if running else AT_ONCE)):
        encoded = iter(encode([text for text in some if text is not None]))
        for text in some:
            ids = [] if text is None else next(encoded)
            tally.text_bytes += len((text or "").encode())
            tally.rows += text is not None
            if text is None or (protocol.row_end and not running):
                ids = [*ids, eos]
            tally.tokens += len(ids)
            tally._rest += ids
            yield from _take(protocol, tally, room, bos, eos)
    yield from _end(protocol, tally, room, bos, eos)


def documents(lines: Iterable[str | None]) -> Iterator[str | None]:
    """The lines of each document as one text, and None behind it."""
    found: list[str] = []
    for line in lines:
        if line is not None:
            found.append(line)
            continue
        text = "".join(found)
        found.clear()
        if text.strip():
            yield text
            yield None
    if found:
        yield "".join(found)


def _take(protocol: Protocol, tally: Tally, room: int, bos: int, eos: int) -> Iterator[Window]:
    """Whole windows of what has been read; at the end of a group its tail is dropped."""
    rest = tally._rest
    if protocol.by_row:
        tally.dropped += max(0, len(rest) - room)
        if protocol.free_bos and len(rest) > room:  # the peers cut a long row before its end mark
            rest[room - 1 :] = rest[-1:]
        if rest:
            yield _window(protocol, tally, rest[:room], bos, eos)
        rest.clear()
        return
    start = 0
    while len(rest) - start >= room:
        yield _window(protocol, tally, rest[start : start + room], bos, eos)
        start += room
    del rest[:start]
    if protocol.group and tally.rows % protocol.group == 0:
        tally.dropped += len(rest)
        rest.clear()


def _end(protocol: Protocol, tally: Tally, room: int, bos: int, eos: int) -> Iterator[Window]:
    rest, tally._rest = tally._rest, []
    if rest and protocol.tail:
        yield _window(protocol, tally, rest, bos, eos)
    else:
        tally.dropped += len(rest)


def _window(protocol: Protocol, tally: Tally, ids: list[int], bos: int, eos: int) -> Window:
    tally.windows += 1
    return Window(tally.windows - 1, [bos, *ids, eos] if protocol.wrapped else ids)


def whole_windows(protocol: str, loaded: Any, corpus: Any, length: int) -> Iterator[list[int]]:
    """The tokens of each full window of a corpus, for a loaded model."""
    ends = {"bos": loaded.bos, "eos": loaded.eos, "running": not corpus.ends}
    found = cut(
        PROTOCOLS[protocol], corpus.rows(), loaded.encode, window=length, tally=Tally(), **ends
    )
    rows = (window.ids for window in found if len(window.ids) == length)
    if (first := next(rows, None)) is None:
        raise ArmdError(f"{corpus.source} is shorter than a window of {length}; lower --window")
    yield first
    yield from rows
