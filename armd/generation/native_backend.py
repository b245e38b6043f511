"""A decode step in C: forward pass, head and sampling of many sequences in one call. For a small
model, making tensors for each step would take longer than the pass."""

from array import array
from ctypes import addressof, byref, c_void_p

from ..native.library import library
from ..native.packed import FastLM
from ..native.sample import native_sampling
from ..native.structs import NativeSequence, PointerTable
from ..runtime.threads import tuned_threads
from .outputs import StepResult, TopLogprob
from .sequence import Sequence

MAX_ROWS = 4096
"""Of a sequence in a pass of its prefill; the rest of a longer one is for other passes."""


class SequenceArrays:
    """A sequence as C reads it: where its arrays and its cache are."""

    def __init__(self, sequence: Sequence) -> None:
        plan, limits = sequence.plan, sequence.plan.prefill_limits
        order = [array("l", table) for table in (plan.position, plan.rank, plan.step_ends)]
        tables = (limits.strict, limits.context + limits.strict, limits.query)
        drawn = [sequence.uniform, array("b", plan.known), sequence.tokens, sequence.logp]
        arrays = [*order, *drawn, *(array("l", table) for table in tables)]
        sides = (sequence.cache.keys, sequence.cache.values)
        caches = [PointerTable(*(layer.data_ptr() for layer in side)) for side in sides]
        self.top = [array(t, bytes(8 * sequence.top_logprobs * len(plan.tokens))) for t in "ld"]
        self.held = (arrays, caches)  # C knows their addresses alone
        seen = None if sequence.seen is None else sequence.seen.buffer_info()[0]
        self.struct = NativeSequence(
            *(*(table.address for table in caches), None),
            *(table.buffer_info()[0] for table in arrays),
            *(seen, native_sampling(sequence.sampling), -1),
        )
        self.struct.n_top = sequence.top_logprobs
        self.struct.top_token, self.struct.top_logp = (table.buffer_info()[0] for table in self.top)
        self.struct.bf16_cache = sequence.cache.keys[0].element_size() == 2
        self.address = addressof(self.struct)

    def top_logprobs(self, size: int) -> list[tuple[TopLogprob, ...]]:
        """The most probable tokens at each of the `size` positions of the last step."""
        n = self.struct.n_top
        if not n:
            return [()] * size
        pairs = list(map(TopLogprob, *(table[: n * size] for table in self.top)))
        return [tuple(pairs[i * n : (i + 1) * n]) for i in range(size)]


class NativeDecoder:
    """A packed model whose weights stay where they are."""

    def __init__(self, model: FastLM) -> None:
        self.model, self.network, self.function = model, model.address(), library().decode_step
        self.logits = model.bos.new_empty(0, model.config.vocab_size)  # of the last step

    def step(self, sequences: list[Sequence]) -> list[StepResult]:
        """Take each sequence a step further."""
        for sequence in sequences:
            if sequence.native is None:
                sequence.native = SequenceArrays(sequence)
            struct = sequence.native.struct
            struct.prefix_state = sequence.cache.prefix_state.data_ptr()
            struct.step, struct.prefix_rows = sequence.step, sequence.cache.prefix_rows
            if not sequence.step:
                struct.read, struct.upto = sequence.read, sequence.upto
        sizes = [sequence.n_draws for sequence in sequences]
        if sum(sizes) > len(self.logits):
            self.logits = self.logits.new_empty(sum(sizes), self.logits.shape[1])
        structs = (c_void_p * len(sequences))(*[one.native.address for one in sequences])
        cache = sequences[0].cache
        tables = (cache.code.data_ptr(), cache.rope.data_ptr(), self.logits.data_ptr())
        with tuned_threads(self.model, sum(sequence.n_rows for sequence in sequences)):
            failed = self.function(byref(self.network), structs, len(sequences), *tables)
        if failed:
            raise MemoryError("no memory for a decode step")
        results = []
        for sequence, size in zip(sequences, sizes, strict=True):
            struct = sequence.native.struct
            sequence.failed = bool(struct.broken)
            sequence.cache.prefix_rows = struct.prefix_rows
            results.append(sequence.advance(sequence.native.top_logprobs(size)))
        return results
