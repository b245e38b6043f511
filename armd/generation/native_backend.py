"""A decode step in C: forward pass, head and sampling of many sequences in one call. For a small
model, making tensors for each step would take longer than the pass."""

from array import array
from ctypes import addressof, byref, c_int, c_void_p

from ..native.library import library
from ..native.packed import FastLM
from ..native.sample import native_sampling
from ..native.structs import NativeSequence, PointerTable
from ..runtime.threads import tuned_threads
from .outputs import Rounds, StepResult, TopLogprob
from .sequence import Sequence

MAX_ROWS = 4096
"""Of a sequence in a pass of its prefill; the rest of a longer one is for other passes."""
NEVER = c_int(0)


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
        eos = -1 if sequence.eos is None else sequence.eos
        self.struct.steps, self.struct.eos = plan.steps, eos
        self.address = addressof(self.struct)

    def top_logprobs(self, first: int, size: int) -> list[tuple[TopLogprob, ...]]:
        """The most probable tokens for each of `size` tokens, from the first one on."""
        if not (n := self.struct.n_top):
            return [()] * size
        return [
            tuple(map(TopLogprob, *(table[at : at + n] for table in self.top)))
            for at in range(n * first, n * (first + size), n)
        ]


class NativeDecoder:
    """A packed model whose weights stay where they are."""

    def __init__(self, model: FastLM) -> None:
        self.model, self.network, self.function = model, model.address(), library().decode_steps
        self.logits, self.room = model.bos.new_empty(0, model.config.vocab_size), 0

    def steps(self, sequences: list[Sequence], seconds: float = 0.0, stop: c_int = NEVER) -> Rounds:
        """Take each sequence a step further; and all of them another one in the same call, until
        one has ended, `seconds` have passed, or another thread has set `stop`."""
        for sequence in sequences:
            if sequence.native is None:
                sequence.native = SequenceArrays(sequence)
            struct = sequence.native.struct
            struct.prefix_state = sequence.cache.prefix_state.data_ptr()
            struct.step, struct.prefix_rows = sequence.step, sequence.cache.prefix_rows
            if not sequence.step:
                struct.read, struct.upto = sequence.read, sequence.upto
            seconds *= sequence.end is None  # behind an EOS any step may be the last
        drawn = sum(sequence.n_draws for sequence in sequences)
        if drawn > self.room:
            self.logits, self.room = self.logits.new_empty(drawn, self.logits.shape[1]), drawn
        structs = (c_void_p * len(sequences))(*[one.native.address for one in sequences])
        cache = sequences[0].cache
        tables = (cache.code.data_ptr(), cache.rope.data_ptr(), self.logits.data_ptr())
        until = (self.room, seconds, byref(stop))
        with tuned_threads(self.model) as rows:
            count = self.function(byref(self.network), structs, len(sequences), *tables, *until)
            rows.append(count * sum(sequence.n_rows for sequence in sequences))
        if count < 0:
            raise MemoryError("no memory for a decode step")
        return [[_advance(one, last=i == count) for one in sequences] for i in range(1, count + 1)]


def _advance(sequence: Sequence, *, last: bool) -> StepResult:
    """Take note of a step of C's; one that failed is its last."""
    struct = sequence.native.struct
    sequence.failed, sequence.cache.prefix_rows = last and bool(struct.broken), struct.prefix_rows
    first, size = sequence.plan.step_ends[sequence.step], sequence.n_draws
    return sequence.advance(sequence.native.top_logprobs(first, size))
