"""Prefill: in chunks, in the same passes as the decode steps of other sequences, and once for all
sequences of a request that have the same prompt."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ..generation.plan import DecodePlan
from ..generation.sequence import Sequence

if TYPE_CHECKING:
    import torch

    from ..model.modeling_armd import ArmdLM
    from .cache_pool import CachePool
    from .requests import ScheduledRequest

WORTH_SHARING = 32
"""Prompt tokens. Shorter prompts are read by each sequence itself: that is quicker than waiting
for another one and copying its cache."""
TOKENS_A_PASS = 256
"""Prompt tokens that a pass reads, all sequences in prefill together: bounds the delay of decode
steps in that pass."""


@dataclass(eq=False)
class SharedPrompt:
    """A prompt of several sequences of a request: the first one reads it, the others copy its rows
    of the KV cache."""

    reader: ScheduledRequest | None = None
    slots: int = 0
    """Cache rows to copy: all but those of the last block. 0: not read yet."""
    state: torch.Tensor | None = None
    prefix_rows: int = 0
    """The prefix state and its number of rows, as they were after these cache rows."""

    def is_read_for(self, entry: ScheduledRequest) -> bool:
        """Another sequence is reading it."""
        if self.slots or self.reader is None or self.reader is entry:
            return False
        reading = self.reader.sequence
        return reading is not None and not reading.step


def shared_prompts(plans: Several[DecodePlan]) -> list[SharedPrompt | None]:
    """For each plan the prompt that it shares with those beside it; None: it has its own."""
    found: list[SharedPrompt | None] = [None] * len(plans)
    for index, (plan, other) in enumerate(pairwise(plans), 1):
        if plan.step_ends[0] >= WORTH_SHARING and same_prefill(plan, other):
            found[index] = found[index - 1] = found[index - 1] or SharedPrompt()
    return found


def same_prefill(one: DecodePlan, other: DecodePlan) -> bool:
    """Whether both are given the same tokens, read in the same order and blocks."""
    if one is other:
        return True
    count, position = one.step_ends[0], one.position
    return (
        count == other.step_ends[0]
        and position[:count] == other.position[:count]
        and one.block[:count] == other.block[:count]
        and all(one.tokens[at] == other.tokens[at] for at in position[:count])
    )


def begin(model: ArmdLM, pool: CachePool, entry: ScheduledRequest) -> None:
    """Make the entry's sequence, in its slot, unless another one is reading its prompt for it."""
    request, cache, prompt = entry.request, entry.cache, entry.request.prompt
    if entry.sequence is not None or cache is None or (prompt and prompt.is_read_for(entry)):
        return
    source = pool.holding(prompt) if prompt and prompt.slots else None
    sequence = Sequence(
        model,
        request.plan,
        pool.clear(cache),
        sampling=request.sampling,
        generator=request.generator,
        eos=request.eos,
        top_logprobs=request.top_logprobs,
    )
    if prompt and prompt.state is not None and source is not None:
        cache.take(source, prompt.slots)
        cache.prefix_state.copy_(prompt.state)
        cache.prefix_rows, sequence.read = prompt.prefix_rows, prompt.slots
        pool.held[id(cache)] = (cache, prompt)
    elif prompt:
        prompt.reader, prompt.slots = entry, 0
    entry.sequence = sequence


def share_pass(entries: list[ScheduledRequest]) -> None:
    """Divide the tokens of a pass among those that read their prompts. The last one of a prompt
    that is read for others has a pass of its own: before it, there is what they take over."""
    reading = [(entry, s) for entry in entries if (s := entry.sequence) and not s.step]
    for entry, sequence in reading:
        prompt, left = entry.request.prompt, sequence.plan.step_ends[0] - max(sequence.read, 1)
        apart = prompt is not None and prompt.reader is entry and left > 0
        most = max(1, TOKENS_A_PASS // len(reading))
        sequence.read_at_most(min(most, left) if apart else most)


def keep_prompt(pool: CachePool, entry: ScheduledRequest, sequence: Sequence) -> None:
    """After a part of a prefill: if all but its last block is there, others may take it over."""
    prompt, (count, *_), block = entry.request.prompt, sequence.plan.step_ends, sequence.plan.block
    if prompt is None or prompt.reader is not entry or prompt.slots:
        return
    if block[sequence.read - 1] == block[count - 1]:
        prompt.slots, prompt.prefix_rows = sequence.read, sequence.cache.prefix_rows
        prompt.state = sequence.cache.prefix_state.clone()
        pool.held[id(sequence.cache)] = (sequence.cache, prompt)
