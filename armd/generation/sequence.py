"""A sequence being generated: its plan, its cache, its random numbers, and what was drawn."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Any

import torch

from ..errors import ArmdError
from ..model.modeling_armd import ArmdLM
from ..model.sampling import NOT_FINITE, Sampling
from .kv_cache import KVCache
from .outputs import StepResult, TokenOutput, TopLogprob
from .plan import DecodePlan, check


class Sequence:
    """One row of a KV cache and all that its next steps need, in plain numbers: both backends read
    and write the same arrays."""

    def __init__(
        self,
        model: ArmdLM,
        plan: DecodePlan,
        cache: KVCache,
        *,
        sampling: Sampling,
        generator: torch.Generator,
        eos: int | None = None,
        top_logprobs: int = 0,
        row: int = 0,
    ) -> None:
        check(model, plan)
        n = len(plan.tokens)
        self.plan, self.cache, self.row, self.sampling, self.eos = plan, cache, row, sampling, eos
        self.top_logprobs = min(top_logprobs, model.config.vocab_size)
        self.tokens, self.logp = array("l", plan.tokens), array("d", bytes(8 * n))
        # one number in [0, 1) for every token, from a generator of its own: what is drawn depends
        # neither on other sequences nor on how many steps were taken
        uniform = torch.rand(n, dtype=torch.float64, generator=generator)
        self.uniform = array("d", uniform.tolist())
        self.seen: array[int] | None = None
        """For the repetition penalty: which tokens of the vocabulary the sequence has."""
        if sampling.repetition_penalty != 1:
            self.seen = array("b", bytes(model.config.vocab_size))
            for token, known in zip(plan.tokens, plan.known, strict=True):
                self.seen[token] |= known
        self.step = 0
        """Steps taken."""
        self.read, self.upto, self.partial = 0, 1 + plan.step_ends[0], False
        """Of the prefill: how many slots of the cache, BOS in the first, have their rows now, and
        after the next pass; whether that pass is a part of the prefill, and draws nothing."""
        self.failed = False
        """Its logits were not finite."""
        self.end: int | None = None
        """The position of the first EOS that it generated."""
        self.stopped = False
        """That EOS is there, and every token before it: the sequence has ended."""
        self.native: Any = None
        """What the C backend keeps for it."""
        self._written, self._gap = list(plan.known), 0

    @property
    def done(self) -> bool:
        return self.stopped or self.step == self.plan.steps

    @property
    def n_draws(self) -> int:
        """How many tokens its next pass draws."""
        ends = self.plan.step_ends
        return 0 if self.partial else ends[self.step + 1] - ends[self.step]

    @property
    def n_rows(self) -> int:
        """The most rows that it has in its next forward pass: every token has a query row."""
        at, ends = self.step, self.plan.step_ends
        return ends[at + 1] - ends[at - 1] if at else 2 * (self.upto - self.read) + self.n_draws

    @property
    def next_positions(self) -> list[int]:
        ends = self.plan.step_ends
        return self.plan.position[ends[self.step] : ends[self.step + 1]]

    def read_at_most(self, tokens: int) -> bool:
        """Before the first step: let the next pass have about so many given tokens; whether that
        leaves some for later ones. Blocks stay whole."""
        there, count, block = max(self.read - 1, 0), self.plan.step_ends[0], self.plan.block
        cut = there + tokens
        if cut < count:
            begin = bisect_left(block, block[cut], 0, count)
            cut = begin if begin > there else bisect_right(block, block[cut], 0, count)
        self.upto, self.partial = 1 + min(cut, count), cut < count
        return self.partial

    def store(self, tokens: list[int], logps: list[float]) -> None:
        """Write down what was drawn for the next step."""
        for position, token, logp in zip(self.next_positions, tokens, logps, strict=True):
            self.tokens[position], self.logp[position] = token, logp

    def advance(self, top: list[tuple[TopLogprob, ...]]) -> StepResult:
        """The tokens of the next step stand in `tokens` and `logp`: take that step. `top`: the most
        probable tokens at each of its positions, as many as are to be reported."""
        if self.failed:
            return ArmdError(NOT_FINITE)
        if self.step == 0:
            self.read = self.upto
            if self.partial:
                self.upto, self.partial = 1 + self.plan.step_ends[0], False
                return ()
        wanted, known, tokens, logp = self.next_positions, self.plan.known, self.tokens, self.logp
        self.step += 1
        if self.seen is not None:
            for position in wanted:
                self.seen[tokens[position]] = 1
        found = tuple(
            [
                TokenOutput(at, tokens[at], logp[at], best, tokens[at] == self.eos)
                for at, best in zip(wanted, top, strict=True)
                if not known[at]
            ]
        )
        if self.eos is not None:
            self._find_end(found)
        return found

    def _find_end(self, found: tuple[TokenOutput, ...]) -> None:
        """The one rule for where a sequence ends: at the first EOS that it generated (not one that
        was given), as soon as every token before it is there."""
        for one in found:
            self._written[one.position] = True
            if one.ends and (self.end is None or one.position < self.end):
                self.end = one.position
        while self._gap < len(self._written) and self._written[self._gap]:
            self._gap += 1
        self.stopped = self.end is not None and self._gap >= self.end

    def text(self) -> list[int]:
        """All tokens. Behind its end stands EOS wherever nothing was given: other streams may have
        drawn tokens there, which are no part of the text."""
        if self.end is None or self.eos is None:
            return self.tokens.tolist()
        behind = zip(self.tokens[self.end :], self.plan.known[self.end :], strict=True)
        rest = [token if known else self.eos for token, known in behind]
        return [*self.tokens[: self.end], *rest]
