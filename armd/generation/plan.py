"""The canvas: what is given, what is blank, and in which steps the blanks will be filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ..errors import ArmdError
from ..model import order as orders
from ..model.order import Order
from ..model.shapes import Bool, Int, Tensor
from .kv_cache import Placing


@dataclass(frozen=True)
class Canvas:
    """Texts to be completed. The leading blocks that are wholly known enter in one pass (prefill);
    each later block is a step. Everything here is small, on the CPU, and worked out before the
    first pass, so that the loop never waits for a device."""

    tokens: Int[Tensor, "b n"]
    """In natural order; what stands in blanks does not matter."""
    known: Bool[Tensor, "b n"]
    order: Order

    @cached_property
    def ends_by_row(self) -> list[list[int]]:
        """How many tokens of each row are there after the prefill and after each of its steps."""
        given = self.known.gather(1, self.order.position).tolist()
        return [*map(steps_of, self.order.block.tolist(), given)]

    @property
    def steps(self) -> int:
        """Passes of the model that it takes to fill everything."""
        return max(map(len, self.ends_by_row)) - 1

    @cached_property
    def ends(self) -> Int[Tensor, "b t"]:
        """The same as a table; rows with fewer steps repeat their last."""
        rows = ([*row, *row[-1:] * (self.steps + 1 - len(row))] for row in self.ends_by_row)
        return torch.tensor([*rows])

    @cached_property
    def alike(self) -> bool:
        """All rows take the same steps, so that nothing needs padding."""
        return all(row == self.ends_by_row[0] for row in self.ends_by_row)

    @cached_property
    def forced(self) -> bool:
        """Some given token stands in a block with blanks, or after one: it is put in as drawn."""
        return bool((self.ends[:, 0] < self.known.sum(1)).any())

    @cached_property
    def is_prefix(self) -> bool:
        """What is given are prompts: nothing after a blank."""
        return bool((self.known[:, 1:] <= self.known[:, :-1]).all())

    def slots(self, step: int) -> slice | Int[Tensor, "b m"]:
        """Places in generation order that step t fills; step 0 is the prefill. Rows with smaller
        blocks are padded with n, one past the last place."""
        if self.alike:
            ends = self.ends_by_row[0]
            return slice(ends[step - 1] if step else 0, ends[step])
        return self._slots(step)

    def _slots(self, step: int) -> Int[Tensor, "b m"]:
        end = self.ends[:, step]
        start = self.ends[:, step - 1] if step else torch.zeros_like(end)
        place = start[:, None] + torch.arange(int((end - start).max()))
        return place.where(place < end[:, None], self.tokens.shape[1])

    def placing(self, step: int, spare: int) -> Placing | None:
        """Where the rows of the pass before step t go and what they see; None if plainly next/all.
        A token's key stands at its place in generation order; in the context, BOS is before it."""
        if step == 1:
            return self._prefill(spare)
        if self.alike:
            return None
        context, query = self._slots(step - 1), self._slots(step)
        before, after = self.ends[:, step - 1, None], self.ends[:, step, None]
        return Placing(
            context_slot=self._slot(context, 1, spare),
            context_limit=(before + 1).expand_as(context),
            strict_limit=(before + 1).expand_as(query),
            query_slot=self._slot(query, 0, spare),
            query_limit=after.expand_as(query),
            context=int(before.max()) + 1,
            query=int(after.max()),
        )

    def _slot(self, place: Tensor, shift: int, spare: int) -> Tensor:
        return (place + shift).where(place < self.tokens.shape[1], spare)

    def _prefill(self, spare: int) -> Placing:
        """BOS and all that is known; the query rows of what is known (the layers above the two
        streams keep their keys), and those of the first step."""
        known, query = self._slots(0), self._slots(1)
        given, after = self.ends[:, 0, None], self.ends[:, 1, None]
        last = self.order.block[:, -1:] + 1
        block = torch.cat([self.order.block, last], 1).gather(1, known).contiguous()
        upto = torch.searchsorted(block, block, right=True).minimum(given)
        before = torch.searchsorted(block, block).minimum(given)
        bos = torch.ones_like(given)
        return Placing(
            context_slot=torch.cat([0 * bos, self._slot(known, 1, spare)], 1),
            context_limit=torch.cat([bos, upto + 1], 1),
            strict_limit=torch.cat([before + 1, (given + 1).expand_as(query)], 1),
            query_slot=torch.cat([self._slot(known, 0, spare), self._slot(query, 0, spare)], 1),
            query_limit=torch.cat([upto.clamp(min=1), after.expand_as(query)], 1),
            context=int(given.max()) + 1,
            query=int(after.max()),
        )


def steps_of(block: list[int], given: list[bool]) -> list[int]:
    """How many tokens of one row are there after the prefill and after each step; blocks and what
    is given stand in generation order."""
    n = len(block)
    borders = [k for k in range(1, n) if block[k] != block[k - 1]] + [n]
    leading = given.index(False) if False in given else n
    filled = max((border for border in borders if border <= leading), default=0)
    return [filled, *(border for border in borders if border > filled)]


def from_prompts(
    prompt: Tensor | Sequence[Sequence[int]] | None,
    *,
    length: int,
    streams: int = 1,
    order: Order | None = None,
) -> Canvas:
    """Prompts, of one or of many lengths, each to be continued up to `length` tokens."""
    rows = [torch.as_tensor(row) for row in prompt] if prompt is not None else []
    if any(row.dim() != 1 or (len(row) and row.is_floating_point()) for row in rows):
        raise ArmdError("a prompt is (batch, k) token ids, one row a text; write [ids] for one")
    rows = [row.long().cpu() for row in rows]
    rows = rows or [torch.empty(0, dtype=torch.long)]
    longest = max(map(len, rows))
    if length < 1 or longest >= length:
        raise ArmdError(
            f"length {length} leaves no room after a prompt of {longest}; raise length or cut the "
            "prompt"
        )
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    for row, given in zip(tokens, rows, strict=True):
        row[: len(given)] = given
    lengths = torch.tensor([len(row) for row in rows])
    return from_blanks(
        tokens, torch.arange(length) < lengths[:, None], streams=streams, order=order
    )


def from_blanks(
    tokens: Int[Tensor, "b n"],
    known: Bool[Tensor, "*b n"],
    *,
    streams: int = 1,
    order: Order | None = None,
) -> Canvas:
    """Texts with blanks anywhere: `known` is True where a token is given."""
    tokens, known = tokens.cpu(), known.cpu()
    if tokens.dim() != 2 or known.shape[-1] != tokens.shape[1]:
        raise ArmdError(
            f"tokens {tuple(tokens.shape)} and known {tuple(known.shape)} do not fit; give tokens "
            "(batch, n) and known (batch, n) or (n,)"
        )
    known = known.expand(tokens.shape)
    tokens = tokens.masked_fill(~known, 0)  # a row that ends early enters what stands in its blanks
    if bool(known.all()):
        raise ArmdError("nothing is blank; set known to False where tokens are to be generated")
    if order is None:
        order = orders.infill(known, streams)
    elif streams != 1:
        raise ArmdError("an order says its own blocks; give either order or streams")
    if len(order) != tokens.shape[1]:
        raise ArmdError(f"the order is for {len(order)} tokens, the canvas has {tokens.shape[1]}")
    rows = order.to("cpu").rows(len(tokens))
    position, block = (t.expand(tokens.shape).contiguous() for t in (rows.position, rows.block))
    order = rows._like(position, block)
    return Canvas(tokens, known, order)
