"""Between tokens and text: encoding within limits, and text that grows in reading order."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ..data.template import behind_text
from ..data.tokenizer import TextTokenizer, byte_symbols, no_panic
from ..generation.outputs import TokenOutput
from .errors import Refusal

NO_CHARACTER = "\ufffd"
"""How decoders show bytes that are no character, or not yet a whole one."""
BYTE_WORD = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A byte in vocabularies that fall back to bytes."""
BYTE_LETTERS = {letter: byte for byte, letter in enumerate(byte_symbols())}
"""The letters that vocabularies of GPT-2's kind write bytes with."""
CHARACTER_BYTES = 4
MOST_PENDING = 2 * CHARACTER_BYTES


class ServerTokenizer:
    """The tokenizer, as the server uses it."""

    def __init__(self, tokenizer: TextTokenizer, max_length: int) -> None:
        self.backend, self.eos, self.max_length = tokenizer.backend, tokenizer.eos, max_length
        self.piece = lru_cache(maxsize=65536)(self._piece)
        self.bytes = lru_cache(maxsize=65536)(self._bytes)

    @cached_property
    def longest(self) -> int:
        """Characters of the longest token: a longer text than so many of them cannot fit."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)))

    @cached_property
    def anchor(self) -> list[int]:
        return self.backend.encode("a", add_special_tokens=False).ids[-1:]

    def check_length(self, text: str, param: str) -> None:
        """Refuse what is not worth looking at."""
        if len(text) > self.max_length * self.longest:
            raise Refusal(400, self.too_long("far more"), param=param, code="too_long")

    def check_count(self, tokens: int) -> None:
        """Refuse more tokens than the model takes."""
        if tokens > self.max_length:
            raise Refusal(400, self.too_long(tokens), code="context_length_exceeded")

    def encode_suffix(self, text: str, param: str) -> list[int]:
        """The tokens of a text that stands behind another."""
        return list(behind_text(lambda part: self.encode(part, param))(text)) if text else []

    def encode(self, text: str, param: str) -> list[int]:
        self.check_length(text, param)
        # of the ways to encode, the one that lets other threads run meanwhile
        with no_panic():
            return self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def too_long(self, tokens: object) -> str:
        return (
            f"the text has {tokens} tokens, new ones included; the model takes {self.max_length}: "
            "cut it, or ask for fewer"
        )

    def decode(self, ids: Sequence[int]) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def _piece(self, token: int) -> str:
        """A token as it reads inside a text; decoders that join words show it with its space."""
        return self.decode([*self.anchor, token])[len(self.decode(self.anchor)) :]

    def _bytes(self, token: int) -> bytes:
        """The bytes of a token. One that is a part of a character has no text of its own."""
        if NO_CHARACTER not in (piece := self.piece(token)):
            return piece.encode()
        word = self.backend.id_to_token(token) or ""
        if found := BYTE_WORD.fullmatch(word):
            return bytes([int(found[1], 16)])
        if set(word) <= BYTE_LETTERS.keys():
            return bytes(BYTE_LETTERS[letter] for letter in word)
        return piece.encode()

    def name(self, token: int) -> str:
        """A token by its text; a part of a character by its bytes, as OpenAI does."""
        piece = self.piece(token)
        if NO_CHARACTER not in piece or self.bytes(token) == piece.encode():
            return piece
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes(token))


class CharacterStream:
    """The text of tokens, one after the other. Bytes that may be the beginning of a character wait
    for its end, but no longer than a character can be: all that waits is decoded again with each
    token. (DecodeStream of tokenizers lets any number wait, and breaks off where later bytes change
    how earlier ones read.)"""

    def __init__(self, reader: ServerTokenizer, after: Sequence[int] = ()) -> None:
        self.reader = reader
        self.ids = list(after[-MOST_PENDING:])
        """The last tokens that were shown, because decoders join words, and those that wait."""
        self.context, self.shown = len(self.ids), reader.decode(self.ids)
        """How many of them, and what of their text, were shown."""

    def step(self, token: int) -> str:
        """What can be shown now that this token is there."""
        self.ids.append(token)
        text = self.reader.decode(self.ids)
        added = self._new(text)
        if added and not text.endswith(NO_CHARACTER):
            self.ids = self.ids[self.context :]
            self.context, self.shown = len(self.ids), self.reader.decode(self.ids)
            return added
        if len(self.ids) - self.context <= MOST_PENDING:
            return ""
        if not added:  # tokens of no text at all; a few are enough as context
            self.ids.pop()
            return ""
        # of bytes, only the last ones can still become a character; they show as one sign
        self.ids = self.ids[-CHARACTER_BYTES:]
        self.context, self.shown = 0, self.reader.decode(self.ids)[:-1]
        return added[:-1]

    def _new(self, text: str) -> str:
        """What of it was not shown. Signs that were may have become a character meanwhile, or the
        other way round: what was shown stays, and the text goes on from where it changed."""
        if text.startswith(self.shown):
            return text[len(self.shown) :]
        pairs = enumerate(zip(text, self.shown, strict=False))
        return text[next((at for at, (new, old) in pairs if new != old), len(text)) :]

    def rest(self) -> str:
        """What waits, if nothing follows."""
        added = self._new(self.reader.decode(self.ids))
        self.ids, self.context, self.shown = [], 0, ""
        return added


@dataclass
class IncrementalText:
    """A text written in any order, read from its left end as far as it is there."""

    reader: ServerTokenizer
    start: int
    """Where the new tokens begin."""
    stops: tuple[str, ...] = ()
    after: Sequence[int] = ()
    """The tokens before them, where their text goes on."""
    text: str = ""
    """All that can be read so far and cannot change."""
    read: list[TokenOutput] = field(default_factory=list)
    """The tokens of it, in reading order."""
    offsets: list[int] = field(default_factory=list)
    """Where each of them begins in the text."""
    stopped: bool = False
    """At a stop string or an EOS; nothing comes after."""
    _landed: dict[int, TokenOutput] = field(default_factory=dict)
    _sent: int = 0
    _told: int = 0

    def __post_init__(self) -> None:
        self._stream = CharacterStream(self.reader, self.after)

    def add(self, tokens: Sequence[TokenOutput]) -> None:
        self._landed |= {one.position: one for one in tokens}
        while not self.stopped and (one := self._landed.pop(self._next, None)) is not None:
            if one.ends:
                self.stopped = True
                self.flush()
                return
            self.offsets.append(len(self.text))
            self.read.append(one)
            self._append(self._stream.step(one.token))

    @property
    def _next(self) -> int:
        return self.start + len(self.read)

    def _append(self, added: str) -> None:
        """More of the text, up to a stop string."""
        seen = max(0, len(self.text) - max(map(len, self.stops), default=0))
        self.text += added
        ends = [at for stop in self.stops if (at := self.text.find(stop, seen)) >= 0]
        if ends:
            self.stopped, self.text = True, self.text[: min(ends)]
            keep = sum(offset < len(self.text) for offset in self.offsets)
            del self.read[keep:], self.offsets[keep:]
            self._stream.rest()

    def flush(self) -> None:
        """Nothing will follow: what is incomplete stays so."""
        self._append(self._stream.rest())

    def take_new(self, *, last: bool) -> tuple[str, slice]:
        """Text not given out before, and its tokens; what may begin a stop string waits."""
        upto = len(self.text)
        if not (last or self.stopped):
            upto -= max((overlap(self.text, stop) for stop in self.stops), default=0)
        if upto <= self._sent and not last:
            return "", slice(0, 0)
        count = len(self.read) if last or self.stopped else bisect_left(self.offsets, upto)
        text, tokens = self.text[self._sent : upto], slice(self._told, count)
        self._sent, self._told = max(upto, self._sent), max(count, self._told)
        return text, tokens


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text a stop string could begin with."""
    at = max(0, len(text) - len(stop) + 1)
    while (at := text.find(stop[0], at)) >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0
