"""A stroke: one pass and its draws for many texts, each a step further, in one call of C. Where a
model is small, making tensors for each step would take longer than the pass."""

from collections.abc import Sequence
from ctypes import addressof, byref, c_bool, c_double, c_long, c_void_p
from typing import NamedTuple

from .cache import Cache
from .fast import FastLM
from .native import Choice, LineRows, library
from .shapes import Float, Tensor


class Limits(NamedTuple):
    """How many rows before it each row may see when a text begins, BOS being one: the context rows
    in the two-stream layers, the query rows there, and the query rows in the layers above."""

    context: list[int]
    strict: list[int]
    query: list[int]


class Line:
    """One text of n tokens where C finds it: all that it will go through, and what was drawn."""

    def __init__(
        self,
        cache: Cache,
        *,
        position: list[int],
        ends: list[int],
        tokens: list[int],
        known: list[bool],
        uniform: list[float],
        choice: tuple[float, float, float, int],
        limits: Limits,
    ) -> None:
        n = len(tokens)
        self.cache = cache
        self.position, self.tokens = ((c_long * n)(*numbers) for numbers in (position, tokens))
        """Where its tokens stand, in the order of writing; and they, in their natural one."""
        self.ends = (c_long * len(ends))(*ends)
        """How many of them are there after the prefill and after each step."""
        self.uniform, self.logp = (c_double * n)(*uniform), (c_double * n)()
        self.known = (c_bool * n)(*known)
        tables = (limits.strict, limits.context + limits.strict, limits.query)
        self.limits = [(c_long * len(table))(*table) for table in tables]
        ((keys, values),) = cache.places
        own = (self.position, self.ends, self.uniform, self.known, self.tokens, self.logp)
        self.told = LineRows(
            *(keys.address, values.address, cache.mark.state.data_ptr()),
            *map(addressof, (*own, *self.limits)),
            *(Choice(*choice), cache.spare),
        )
        self.address, self.step = addressof(self.told), 0

    @property
    def wanted(self) -> int:
        """How many tokens its next step draws."""
        return self.ends[self.step + 1] - self.ends[self.step]

    def go(self, step: int) -> None:
        """On to a step, whoever drew the one before."""
        self.step = self.told.step = step


class Pen:
    """What writes lines: a model whose weights stay where they are, and the position codes and
    turns of a cache."""

    def __init__(self, model: FastLM, cache: Cache) -> None:
        self.network, self.like = model.address(), model.bos
        self.outputs, self.held = model.config.vocab_size, (cache.code, cache.turn)
        self.tables = [table.data_ptr() for table in self.held]
        self.stroke = library().stroke

    def write(self, lines: Sequence[Line]) -> Float[Tensor, "n v"]:
        """Each line a step further. Returns the logits that were drawn from, line by line."""
        logits = self.like.new_empty(sum(line.wanted for line in lines), self.outputs)
        told = (c_void_p * len(lines))(*[line.address for line in lines])
        if self.stroke(byref(self.network), told, len(lines), *self.tables, logits.data_ptr()):
            raise MemoryError("no memory for a decoding pass")
        for line in lines:
            line.step += 1
        return logits
