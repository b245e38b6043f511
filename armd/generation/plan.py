"""Decode plans: which tokens of a sequence are given, and in which order and steps the others come.
The leading blocks that are wholly known enter in one forward pass (the prefill); each later block
is a decode step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch

from ..errors import ArmdError
from ..model import order as orders
from ..model.modeling_armd import ArmdLM
from ..model.neighbor import needs_extra_row
from ..model.order import Order
from ..model.shapes import Bool, Int, Tensor
from ..runtime.token_rows import an_order, token_rows


class PrefillLimits(NamedTuple):
    """How many context rows each row of the prefill sees, BOS being one: context rows and query
    rows in the two-stream layers; and how many query rows each query row sees above them."""

    context: list[int]
    strict: list[int]
    query: list[int]


@dataclass(frozen=True)
class DecodePlan:
    """The plan of one sequence, as Python lists: for a small model, building tensors for every
    request costs more than the forward pass."""

    tokens: list[int]
    """In natural order, 0 in blanks."""
    known: list[bool]
    position: list[int]
    """Natural positions in generation order, and the block of each."""
    block: list[int]
    step_ends: list[int]
    """How many tokens are there after the prefill and after each step."""

    @property
    def steps(self) -> int:
        """Forward passes that it takes to fill every blank."""
        return len(self.step_ends) - 1

    @cached_property
    def rank(self) -> list[int]:
        """When each natural position is generated."""
        found = [0] * len(self.position)
        for k, position in enumerate(self.position):
            found[position] = k
        return found

    @cached_property
    def prefill_limits(self) -> PrefillLimits:
        """A given token sees the blocks before its own, and its own block as context; the tokens of
        the first step see everything that is given."""
        count, after = self.step_ends[0], self.step_ends[min(1, self.steps)]
        block, wanted = self.block[:count], after - count
        before = [bisect_left(block, own) for own in block]
        upto = [bisect_right(block, own) for own in block]
        return PrefillLimits(
            context=[1, *(b + 1 for b in upto)],
            strict=[*(b + 1 for b in before), *[count + 1] * wanted],
            query=[*upto, *[after] * wanted],
        )

    @cached_property
    def needs_extra_row(self) -> list[bool]:
        """query="neighbor": which natural positions no context row predicts."""
        order = self.order()
        return needs_extra_row(order)[0, order.inverse()].tolist()

    def order(self) -> Order:
        return Order(torch.tensor(self.position), torch.tensor(self.block))


def check(model: ArmdLM, plan: DecodePlan) -> None:
    """Raise unless the model can carry out this plan."""
    tokens, longest, vocabulary = plan.tokens, model.config.max_length, model.config.vocab_size
    if len(tokens) > longest:
        raise ArmdError(
            f"length {len(tokens)} passes the model's max_length {longest}; ask for less"
        )
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        wrong = f"a given token is outside the vocabulary of {vocabulary}"
        raise ArmdError(f"{wrong}; is this the model's own tokenizer?")
    if not model.any_order:
        natural = plan.position == list(range(len(tokens))) == plan.block
        if not natural or True in plan.known[sum(plan.known) :]:
            raise ArmdError("query='shift' is autoregressive: write left to right after a prompt")
    elif model.check_order.__func__ is not ArmdLM.check_order:  # which takes any; peft has no own
        model.check_order(plan.order())


def plan_of(
    tokens: Sequence[int], known: Sequence[bool], position: list[int], block: list[int]
) -> DecodePlan:
    """Tokens in an order of all positions. A known token inside or after blanks is put in when its
    step comes."""
    n = len(block)
    borders = [k for k in range(1, n) if block[k] != block[k - 1]] + [n]
    leading = next((k for k, at in enumerate(position) if not known[at]), n)
    filled = max((border for border in borders if border <= leading), default=0)
    given = [token if there else 0 for token, there in zip(tokens, known, strict=True)]
    ends = [filled, *(border for border in borders if border > filled)]
    return DecodePlan(given, list(known), position, block, ends)


def completing(
    tokens: Sequence[int], known: Sequence[bool], position: Sequence[int], block: Sequence[int]
) -> DecodePlan:
    """What is known first, left to right, then the blanks in an order of their own."""
    given = [at for at, there in enumerate(known) if there]
    blank = [at for at, there in enumerate(known) if not there]
    blocks = [*range(len(given)), *(len(given) + number for number in block)]
    return plan_of(tokens, known, [*given, *(blank[at] for at in position)], blocks)


@lru_cache(256)
def strided(n: int, streams: int) -> tuple[list[int], list[int]]:
    """Positions and blocks of `streams` strided runs; the same few are asked for often."""
    if n == 0:
        return [], []
    order = orders.strided(n, streams)
    return order.position.tolist(), order.block.tolist()


def from_prompts(
    prompt: Tensor | Sequence[Sequence[int]] | None,
    *,
    length: int,
    streams: int = 1,
    order: Order | None = None,
) -> list[DecodePlan]:
    """Prompts, of one or of many lengths, each to be continued up to `length` tokens."""
    given = [[]] if prompt is None else token_rows(prompt)
    if not given:
        raise ArmdError("there is no prompt; leave it out to write one text from nothing")
    longest = max(map(len, given))
    if not isinstance(length, int) or length < 1 or longest >= length:
        wrong = f"length {length} leaves no room after a prompt of {longest}"
        raise ArmdError(f"{wrong}; raise length or cut the prompt")
    tokens = torch.tensor([[*row, *[0] * (length - len(row))] for row in given])
    known = torch.arange(length) < torch.tensor([[len(row)] for row in given])
    return from_blanks(tokens, known, streams=streams, order=order)


def from_blanks(
    tokens: Int[Tensor, "b n"],
    known: Bool[Tensor, "*b n"],
    *,
    streams: int = 1,
    order: Order | None = None,
) -> list[DecodePlan]:
    """Sequences with blanks anywhere: `known` is True where a token is given."""
    if tokens.dim() != 2 or known.shape[-1] != tokens.shape[1]:
        wrong = f"tokens {tuple(tokens.shape)} and known {tuple(known.shape)} do not fit"
        raise ArmdError(f"{wrong}; give tokens (batch, n) and known (batch, n) or (n,)")
    known = known.expand(tokens.shape)
    if bool(known.all()):
        raise ArmdError("nothing is blank; set known to False where tokens are to be generated")
    texts = list(zip(tokens.tolist(), known.tolist(), strict=True))
    if order is None:
        return [completing(*text, *strided(text[1].count(False), streams)) for text in texts]
    if streams != 1:
        raise ArmdError("an order says its own blocks; give either order or streams")
    if (length := tokens.shape[1]) != len(an_order(order)):
        raise ArmdError(f"the order is for {len(order)} tokens, the sequences have {length}")
    whole = order.rows(len(texts))
    sides = (side.expand(tokens.shape).tolist() for side in (whole.position, whole.block))
    return [plan_of(*text, *side) for text, *side in zip(texts, *sides, strict=True)]
