"""A stroke: one pass and its draws for many texts, each a step further, in one call of C. Where a
model is small, making tensors for each step would take longer than the pass."""

from collections.abc import Sequence
from ctypes import Array, addressof, byref, c_bool, c_double, c_long, c_void_p

from ..model.shapes import Float, Tensor
from ..native.library import library
from ..native.packed import FastLM
from ..native.structs import NativeSampling, NativeSequence
from .decode_plan import Course, first_limits
from .kv_cache import Cache


class Line:
    """One text of n tokens where C finds it: all that it will go through, and what was drawn."""

    def __init__(
        self,
        cache: Cache,
        course: Course,
        uniform: list[float],
        choice: tuple[float, float, float, int, float] | None,
        *,
        row: int = 0,
    ) -> None:
        """`row` is its own of the cache. Without a choice, tokens are drawn elsewhere."""
        n, self.cache, self.row = len(course.tokens), cache, row
        self.position, self.tokens = _longs(course.position), _longs(course.tokens)
        self.ends, self.known = _longs(course.ends), (c_bool * n)(*course.known)
        self.uniform, self.logp = (c_double * n)(*uniform), (c_double * n)()
        self.limits = limits = first_limits(course)
        tables = (limits.strict, limits.context + limits.strict, limits.query)
        self.tables = [*map(_longs, tables)]
        keys, values = cache.places[row]
        self.rank = _longs([0] * n)
        for index, at in enumerate(course.position):
            self.rank[at] = index
        own = (self.position, self.rank, self.ends, self.uniform, self.known)
        self.told = NativeSequence(
            *(keys.address, values.address, None),
            *map(addressof, (*own, self.tokens, self.logp, *self.tables)),
            *(None, NativeSampling(*(choice or (1.0, 0.0, 0.0, 0, 1.0))), cache.spare),
        )
        self.address, self.step = addressof(self.told), 0
        self.grow()

    @property
    def wanted(self) -> int:
        """How many tokens its next step draws."""
        return self.ends[self.step + 1] - self.ends[self.step]

    @property
    def rows(self) -> int:
        """How many rows it has in its next pass."""
        step, ends = self.step, self.ends
        return ends[step + 1] - ends[step - 1] if step else 1 + ends[0] + ends[1]

    @property
    def last(self) -> list[int]:
        """The positions that its last step filled; before the first, those given."""
        return self.position[self.ends[self.step - 1] if self.step else 0 : self.ends[self.step]]

    @property
    def next(self) -> list[int]:
        """The positions that its next step fills."""
        return self.position[self.ends[self.step] : self.ends[self.step + 1]]

    @property
    def steps(self) -> int:
        return len(self.ends) - 1

    def grow(self) -> None:
        """From the state that its cache has now; strokes let it grow in place."""
        self.told.prefix_state = self.cache.mark.state[self.row].data_ptr()

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
        self.stroke = library().decode_step

    def write(self, lines: Sequence[Line]) -> Float[Tensor, "n v"]:
        """Each line a step further. Returns the logits that were drawn from, line by line."""
        logits = self.like.new_empty(sum(line.wanted for line in lines), self.outputs)
        told = (c_void_p * len(lines))(*[line.address for line in lines])
        if self.stroke(byref(self.network), told, len(lines), *self.tables, logits.data_ptr()):
            raise MemoryError("no memory for a decoding pass")
        for line in lines:
            line.step += 1
        return logits


def _longs(numbers: list[int]) -> "Array[c_long]":
    return (c_long * len(numbers))(*numbers)
