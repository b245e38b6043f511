"""Between tokens and text: encoding within limits, and text that grows in reading order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from tokenizers.decoders import DecodeStream

from ..data.tokenizer import TextTokenizer
from ..generation.outputs import TokenOutput
from .errors import Refusal


class ServerTokenizer:
    """The tokenizer, as the server uses it."""

    def __init__(self, tokenizer: TextTokenizer, max_length: int) -> None:
        self.backend, self.eos, self.max_length = tokenizer.backend, tokenizer.eos, max_length
        self.piece = lru_cache(maxsize=65536)(self._piece)

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

    def encode(self, text: str, param: str) -> list[int]:
        self.check_length(text, param)
        # of the ways to encode, the one that lets other threads run meanwhile
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


@dataclass
class IncrementalText:
    """A text written in any order, read from its left end as far as it is there."""

    reader: ServerTokenizer
    start: int
    """Where the new tokens begin."""
    stops: tuple[str, ...] = ()
    text: str = ""
    """All that can be read so far and cannot change."""
    read: list[TokenOutput] = field(default_factory=list)
    """The tokens of it, in reading order."""
    offsets: list[int] = field(default_factory=list)
    """Where each of them begins in the text."""
    stopped: bool = False
    """At a stop string or an EOS; nothing comes after."""
    _landed: dict[int, TokenOutput] = field(default_factory=dict)
    _stream: DecodeStream = field(
        default_factory=lambda: DecodeStream(skip_special_tokens=False)  # type: ignore[call-arg]
    )
    _pending: bool = False
    """The last tokens are the beginning of a character that is not complete."""
    _sent: int = 0
    _told: int = 0

    def add(self, tokens: Sequence[TokenOutput]) -> None:
        self._landed |= {one.position: one for one in tokens}
        while not self.stopped and (one := self._landed.pop(self._next, None)) is not None:
            if one.ends:
                self.stopped = True
                self.flush()
                return
            self.offsets.append(len(self.text))
            self.read.append(one)
            added = self._stream.step(self.reader.backend, one.token)
            self._pending = added is None
            self._append(added or "")

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

    def flush(self) -> None:
        """Nothing will follow: what is incomplete stays so."""
        if self._pending:
            self._pending = False
            self._append(self.reader.decode([one.token for one in self.read])[len(self.text) :])

    def take_new(self, *, last: bool) -> tuple[str, slice]:
        """Text not given out before, and its tokens; what may begin a stop string waits."""
        upto = len(self.text)
        if not (last or self.stopped):
            upto -= max((overlap(self.text, stop) for stop in self.stops), default=0)
        if upto <= self._sent and not last:
            return "", slice(0, 0)
        text, tokens = self.text[self._sent : upto], slice(self._told, len(self.read))
        self._sent, self._told = max(upto, self._sent), max(len(self.read), self._told)
        return text, tokens


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text a stop string could begin with."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
