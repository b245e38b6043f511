"""A decode step in C: forward pass, head and sampling of many sequences in one call. For a small
model, making tensors for each step would take longer than the pass."""

from array import array
from ctypes import addressof, byref, c_void_p
from typing import Any
from weakref import WeakKeyDictionary

from ..native.library import library
from ..native.packed import FastLM
from ..native.structs import NativeSampling, NativeSequence
from ..runtime.threads import tuned_threads
from .kv_cache import KVCache
from .outputs import StepResult
from .sequence import Sequence

MAX_ROWS = 128
"""A sequence with more rows in a pass than this, the prefill of a long prompt, goes to torch: the C
kernels are made for few."""


class SequenceArrays:
    """What C is told of a sequence: where its arrays and its cache are."""

    def __init__(self, sequence: Sequence) -> None:
        plan, limits = sequence.plan, sequence.plan.prefill_limits
        order = [array("l", table) for table in (plan.position, plan.rank, plan.step_ends)]
        tables = (limits.strict, limits.context + limits.strict, limits.query)
        drawn = [sequence.uniform, array("b", plan.known), sequence.tokens, sequence.logp]
        arrays = [*order, *drawn, *(array("l", table) for table in tables)]
        caches = pointers(sequence.cache)
        self.held = (arrays, caches)  # C knows their addresses alone
        seen = None if sequence.seen is None else sequence.seen.buffer_info()[0]
        self.struct = NativeSequence(
            *(*map(addressof, caches), None),
            *(table.buffer_info()[0] for table in arrays),
            *(seen, NativeSampling(*sequence.sampling.choice), -1),
        )
        self.address = addressof(self.struct)


class NativeDecoder:
    """A packed model whose weights stay where they are."""

    def __init__(self, model: FastLM) -> None:
        self.model, self.network, self.like = model, model.address(), model.bos
        self.vocabulary, self.function = model.config.vocab_size, library().decode_step

    def step(self, sequences: list[Sequence]) -> list[StepResult]:
        """Take each sequence a step further."""
        for sequence in sequences:
            if sequence.native is None:
                sequence.native = SequenceArrays(sequence)
            struct = sequence.native.struct
            struct.prefix_state = sequence.cache.prefix_state.data_ptr()
            struct.step, struct.prefix_rows = sequence.step, sequence.cache.prefix_rows
        sizes = [sequence.n_draws for sequence in sequences]
        logits = self.like.new_empty(sum(sizes), self.vocabulary)
        told = (c_void_p * len(sequences))(*[sequence.native.address for sequence in sequences])
        cache = sequences[0].cache
        tables = (cache.code.data_ptr(), cache.rope.data_ptr(), logits.data_ptr())
        with tuned_threads(self.model, sum(sequence.n_rows for sequence in sequences)):
            failed = self.function(byref(self.network), told, len(sequences), *tables)
        if failed:
            raise MemoryError("no memory for a decode step")
        results, first = [], 0
        for sequence, size in zip(sequences, sizes, strict=True):
            struct = sequence.native.struct
            sequence.failed = bool(struct.broken)
            sequence.cache.prefix_rows = struct.prefix_rows
            own = logits[first : first + size] if sequence.top_logprobs else None
            results.append(sequence.advance(own))
            first += size
        return results


_pointers: WeakKeyDictionary[KVCache, tuple[Any, Any]] = WeakKeyDictionary()


def pointers(cache: KVCache) -> tuple[Any, Any]:
    """Where the keys and the values of each layer are, as C reads it; made once for a cache."""
    if cache not in _pointers:
        sides = ([side.data_ptr() for side in sides] for sides in (cache.keys, cache.values))
        key, value = ((c_void_p * len(side))(*side) for side in sides)
        _pointers[cache] = (key, value)
    return _pointers[cache]
