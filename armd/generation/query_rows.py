"""Which rows enter a forward pass of torch_backend.py, and what the query rows start from."""

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import NamedTuple

import torch

from ..model.adapted_linear import out_of_order
from ..model.layers import right_keys
from ..model.modeling_armd import ArmdLM
from ..model.prefix import append_to_state, prefix_sums_in_blocks
from ..model.shapes import Float, Int, Tensor
from .kv_cache import CacheWindow
from .sequence import Sequence


class QueryRows(NamedTuple):
    """The query rows of a group that are no context rows."""

    hidden: Float[Tensor, "b x d"]
    at: Int[Tensor, "b x"]
    """Their RoPE positions."""
    keep: Int[Tensor, "b q"]
    """Which of all rows, context rows first, leave the first layers."""


class GroupRows:
    """What a group of sequences, which take equal steps in one cache, enters in a pass. Before the
    first step: BOS and what is given as context, all or a part, and query rows of what is given
    (the layers above the two streams keep their keys) and of the first step. Later: what the last
    step drew, and query rows of the next step. Positions count BOS as 0, so that tokens stand at
    1..n."""

    def __init__(self, model: ArmdLM, group: list[Sequence]) -> None:
        first, query = group[0], model.config.query
        step, ends, shift = first.step, first.plan.step_ends, query == "shift"
        self.model, self.group, self.cache = model, group, first.cache
        self.start = 1 + ends[step - 1] if step else first.read
        self.length = 1 + ends[step] if step else first.upto
        """Slots of the context rows of this pass: from `start` to `length`."""
        self.high_start = ends[step] if step else first.read if shift else max(first.read - 1, 0)
        """The first slot of the query rows in the layers above the two streams."""
        end = first.upto - (not shift) if first.partial else ends[step + 1]
        self.context, self.context_at = self._context_rows(
            [range(self.start, self.length)] * len(group)
        )
        places = (s.plan.position[self.high_start : end] for s in group)
        self.query_at = self._table([p + 1 for p in row] for row in places)
        self.limits: list[Tensor] | None = None
        """What the rows of a prefill see, as in PrefillLimits; None: everything."""
        if step == 0:
            sides = zip(*(s.plan.prefill_limits for s in group), strict=True)
            parts = (slice(self.start, self.length), *[slice(self.high_start, end)] * 2)
            of_pass = zip(sides, parts, strict=True)
            self.limits = [self._table(row[part] for row in side) for side, part in of_pass]
        self.aggregates = query in ("prefix", "mean")
        self.queries = self._prefix_queries() if self.aggregates else self._neighbor_queries()

    def _table(self, rows: Iterable[Rows[int]]) -> Int[Tensor, "b m"]:
        return torch.tensor(list(rows), dtype=torch.long, device=self.model.device)

    def _context_rows(
        self, slots: Rows[Rows[int]]
    ) -> tuple[Float[Tensor, "b m d"], Int[Tensor, "b m"]]:
        """What stands in these slots of each sequence, BOS in slot 0: embeddings and positions."""
        at, tokens = [], []
        for sequence, row in zip(self.group, slots, strict=True):
            places = [sequence.plan.position[slot - 1] if slot else -1 for slot in row]
            at.append([p + 1 for p in places])
            tokens.append([sequence.tokens[p] if p >= 0 else 0 for p in places])
        positions = self._table(at)
        embedded = self.model.embedding(self._table(tokens))
        return embedded.where((positions > 0)[..., None], self.model.bos), positions

    @property
    def hidden(self) -> Float[Tensor, "b r d"]:
        """The first rows: context rows, then the query rows that are none."""
        rows = self.context
        if self.model.config.query == "shift":
            rows = self.model.shift_inputs(rows, self.cache.code, self.query_at)
        return torch.cat([rows, self.queries.hidden], 1)

    @property
    def rope(self) -> Float[Tensor, "b r ropes 2"]:
        """The shifted query has context rows alone, and models that are built on it may turn keys
        and queries apart."""
        rope = self.cache.rope[self.context_at]
        if self.model.config.query == "shift":
            return self.model.shift_rope(rope, self.cache.rope[self.query_at])
        return torch.cat([rope, self.cache.rope[self.queries.at]], 1)

    def window(self) -> CacheWindow:
        """In the layers in which context rows write keys and values."""
        at, limit, apart = torch.cat([self.context_at, self.queries.at], 1), None, (None, None)
        every, config = torch.full_like(at, self.length), self.model.config
        if self.limits is not None:
            strict = self.limits[1] if self.aggregates else every[:, self.context_at.shape[1] :]
            limit = torch.cat([self.limits[0], strict], 1)
        if config.right_bias or config.right_offset or config.adapter_rank:
            keys = ([0, *(p + 1 for p in s.plan.position[: self.length - 1])] for s in self.group)
            visible, keys_at = every if limit is None else limit, self._table(keys)
            apart = right_keys(at, keys_at, config), out_of_order(at, keys_at, visible)
        n_kv, keep = self.length - self.start, self.queries.keep
        return CacheWindow(self.cache, at.shape[1], n_kv, self.start, limit, keep, *apart)

    def high_window(self) -> CacheWindow:
        """In the layers above the two streams, where query rows write keys and values."""
        k, limit = self.query_at.shape[1], None if self.limits is None else self.limits[2]
        return CacheWindow(self.cache, k, k, self.high_start, limit)

    def _prefix_queries(self) -> QueryRows:
        """query="prefix" and "mean": query rows start from the prefix aggregation."""
        cache, (batch, m), k = self.cache, self.context_at.shape, self.query_at.shape[1]
        key, query = cache.code[self.context_at], cache.code[self.query_at]
        before = cache.prefix_state
        cache.prefix_state = append_to_state(before, key, self.context)
        if self.limits is None:
            count, sums = torch.full_like(self.query_at, self.length), query @ cache.prefix_state
        else:
            count = self.limits[1]
            sums = prefix_sums_in_blocks(query, key, self.context, count - self.start)
            sums = sums + query @ before if self.start else sums
        keep = torch.arange(m, m + k, device=sums.device).expand(batch, k)
        return QueryRows(self.model.first_query_from_sums(sums, count), self.query_at, keep)

    def _neighbor_queries(self) -> QueryRows:
        """query="neighbor": a token is predicted by the context row of the token before it. It
        needs a query row of its own only where that row is older, or sees less, or is not there.
        With "shift" the last context row always predicts. Of a part of a prefill one row is kept,
        which nothing reads."""
        group, m, extra = self.group, self.length - self.start, []
        slots = [[self.length - 1]] * len(group)
        if self.model.config.query == "neighbor" and not group[0].partial:
            slots = [[s.plan.rank[p - 1] + 1 if p else 0 for p in s.next_positions] for s in group]
            needed = ([s.plan.needs_extra_row[p] for p in s.next_positions] for s in group)
            extra = [j for j, of_each in enumerate(zip(*needed, strict=True)) if any(of_each)]
        keep = [
            [m + extra.index(j) if j in extra else slot - self.start for j, slot in enumerate(row)]
            for row in slots
        ]
        at = self._table([s.next_positions[j] for j in extra] for s in group)
        slots = [[row[j] for j in extra] for row in slots]
        hidden = self._neighbor_rows(at, slots) if extra else self.context[:, :0]
        return QueryRows(hidden, at, self._table(keep))

    def _neighbor_rows(
        self, at: Int[Tensor, "b x"], slots: list[list[int]]
    ) -> Float[Tensor, "b x d"]:
        """The first rows of query rows: the token in their slot, or what stands for an unknown one,
        for which the prefix state is brought up to this pass."""
        cache, known = self.cache, [[slot < self.length for slot in row] for row in slots]
        near, _ = self._context_rows([[s if s < self.length else 0 for s in row] for row in slots])
        if all(map(all, known)):
            return near
        missing = [range(cache.prefix_rows, self.length)] * len(self.group)
        rows, key_at = self._context_rows(missing)
        cache.prefix_state = append_to_state(cache.prefix_state, cache.code[key_at], rows)
        cache.prefix_rows = self.length
        unknown = self.model.first_query_from_sums(cache.code[at + 1] @ cache.prefix_state, None)
        return near.where(self._table(known).bool()[..., None], unknown)
