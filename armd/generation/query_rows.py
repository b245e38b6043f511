"""Which rows enter a forward pass of torch_backend.py, and what the query rows start from."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from ..model.modeling_armd import ArmdLM
from ..model.prefix import append_to_state, prefix_sums_in_blocks
from ..model.shapes import Float, Int, Tensor
from .kv_cache import CacheWindow, KVCache
from .sequence import Sequence


class Queries(NamedTuple):
    """The query rows of a group that are no context rows."""

    hidden: Float[Tensor, "b x d"]
    at: Int[Tensor, "b x"]
    """Their RoPE positions."""
    keep: Int[Tensor, "b q"]
    """Which of all rows, context rows first, leave the first layers."""


@dataclass(frozen=True)
class GroupInputs:
    """What a group of sequences enters in a pass. Before the first step: BOS and all that is given
    as context, and query rows of what is given (the layers above the two streams keep their keys)
    and of the first step. Later: what the last step drew, and query rows of the next step."""

    group: list[Sequence]
    context: Float[Tensor, "b m d"]
    context_at: Int[Tensor, "b m"]
    """Positions count BOS as 0, so that tokens stand at 1..n."""
    query_at: Int[Tensor, "b k"]

    @property
    def cache(self) -> KVCache:
        return self.group[0].cache

    @property
    def start(self) -> tuple[int, int]:
        """The first slot of the context rows, and of the query rows in the layers above."""
        step, ends = self.group[0].step, self.group[0].plan.step_ends
        return (1 + ends[step - 1], ends[step]) if step else (0, 0)

    @property
    def length(self) -> int:
        """Context rows of each sequence, those of this pass included."""
        return 1 + self.group[0].plan.step_ends[self.group[0].step]

    @cached_property
    def limits(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """What the rows of a prefill see, as in PrefillLimits; None: everything."""
        if self.group[0].step:
            return None
        sides = zip(*(sequence.plan.prefill_limits for sequence in self.group), strict=True)
        context, strict, query = (torch.tensor(s, device=self.context_at.device) for s in sides)
        return context, strict, query

    @property
    def strict_limit(self) -> Int[Tensor, "b k"]:
        """How many context rows each query row sees."""
        return torch.full_like(self.query_at, self.length) if not self.limits else self.limits[1]

    def rope(self, model: ArmdLM, queries: Queries) -> Float[Tensor, "b m ropes 2"]:
        """Of the context rows and of the query rows that are none; the shifted query has no such
        rows, and models that are built on it may turn keys and queries apart."""
        rope = self.cache.rope[self.context_at]
        if model.config.query == "shift":
            return model.shift_rope(rope, self.cache.rope[self.query_at])
        return torch.cat([rope, self.cache.rope[queries.at]], 1)

    def window(self, model: ArmdLM, queries: Queries) -> CacheWindow:
        """In the layers in which context rows write keys and values."""
        m, x = self.context_at.shape[1], queries.at.shape[1]
        limit, right = None, None
        if self.limits is not None:
            more = torch.full_like(queries.at, self.length)
            more = more if model.config.query in ("shift", "neighbor") else self.limits[1]
            limit = torch.cat([self.limits[0], more], 1)
        if model.config.right_bias:
            keys = [[0, *(p + 1 for p in s.plan.position[: self.length - 1])] for s in self.group]
            at = torch.cat([self.context_at, queries.at], 1)
            right = torch.tensor(keys, device=at.device)[:, None] > at[..., None]
        return CacheWindow(self.cache, m + x, m, self.start[0], limit, queries.keep, right)

    def high_window(self) -> CacheWindow:
        """In the layers above the two streams, where query rows write keys and values."""
        k, limit = self.query_at.shape[1], None if self.limits is None else self.limits[2]
        return CacheWindow(self.cache, k, k, self.start[1], limit)


def inputs_of(model: ArmdLM, groups: list[list[Sequence]]) -> list[GroupInputs]:
    """Tensors are made for all groups at once."""
    context, query, tokens = [], [], []
    for sequence in (sequence for group in groups for sequence in group):
        last, bos = sequence.last_positions, [0] * (sequence.step == 0)
        context.append([*bos, *(p + 1 for p in last)])
        tokens += [*(-1 for _ in bos), *(sequence.tokens[p] for p in last)]
        given = [] if sequence.step else last
        query.append([p + 1 for p in (*given, *sequence.next_positions)])
    first, tables = 0, ([], [])
    for group in groups:
        for rows, table in zip((context, query), tables, strict=True):
            table.append(torch.tensor(rows[first : first + len(group)], device=model.device))
        first += len(group)
    embedded = _embed(model, torch.tensor(tokens)).split([at.numel() for at in tables[0]])
    found = []
    for group, own, at, more in zip(groups, embedded, *tables, strict=True):
        context = own.view(*at.shape, -1)
        if model.config.query == "shift":
            context = model.shift_inputs(context, group[0].cache.code, more)
        found.append(GroupInputs(group, context, at, more))
    return found


def _embed(model: ArmdLM, tokens: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
    """Token embeddings; -1 is BOS."""
    tokens = tokens.to(model.device)
    return model.embedding(tokens.clamp(min=0)).where((tokens >= 0)[..., None], model.bos)


def prefix_queries(model: ArmdLM, inputs: list[GroupInputs]) -> list[Queries]:
    """query="prefix" and "mean": query rows start from the prefix aggregation of their sequence."""
    sums = torch.cat([_aggregate(own).flatten(0, 1) for own in inputs])
    count = None
    if model.config.query == "mean":
        count = torch.cat([own.strict_limit.flatten() for own in inputs])
    first = model.first_query_from_sums(sums, count)
    found = []
    for own, hidden in zip(
        inputs, first.split([own.query_at.numel() for own in inputs]), strict=True
    ):
        m, (batch, k) = own.context_at.shape[1], own.query_at.shape
        keep = torch.arange(m, m + k, device=hidden.device).expand(batch, k)
        found.append(Queries(hidden.view(batch, k, -1), own.query_at, keep))
    return found


def _aggregate(own: GroupInputs) -> Float[Tensor, "b k d"]:
    """Add the context rows to the prefix state. Returns what the query rows sum up."""
    cache = own.cache
    key, query = cache.code[own.context_at], cache.code[own.query_at]
    cache.prefix_state = append_to_state(cache.prefix_state, key, own.context)
    if own.limits is not None:
        return prefix_sums_in_blocks(query, key, own.context, own.limits[1])
    return query @ cache.prefix_state


def neighbor_queries(model: ArmdLM, own: GroupInputs) -> Queries:
    """query="neighbor": a token is predicted by the context row of the token before it. It needs a
    query row of its own only where that row is older, or sees less, or is not there. With "shift"
    the last context row always does."""
    group, (start, _), m = own.group, own.start, own.context_at.shape[1]
    wanted, device = [sequence.next_positions for sequence in group], own.context.device
    slots = [
        [s.plan.rank[p - 1] + 1 if p else 0 for p in at]
        for s, at in zip(group, wanted, strict=True)
    ]
    extra: list[int] = []
    if model.config.query == "neighbor":
        sees = [[*[0] * start, *_reach(own, sequence)] for sequence in group]
        columns = range(len(wanted[0]))
        shared = [
            all(
                row[j] < len(s) and s[row[j]] == own.length
                for row, s in zip(slots, sees, strict=True)
            )
            for j in columns
        ]
        extra = [j for j in columns if not shared[j]]
    else:
        slots = [[start + m - 1]] * len(group)
    keep = [
        [m + extra.index(j) if j in extra else slot - start for j, slot in enumerate(row)]
        for row in slots
    ]
    at = torch.tensor([[row[j] for j in extra] for row in wanted], device=device).long()
    slot = torch.tensor([[row[j] for j in extra] for row in slots])
    hidden = _neighbor_rows(model, own, at, slot) if extra else own.context[:, :0]
    return Queries(hidden, at, torch.tensor(keep, device=device))


def _reach(own: GroupInputs, sequence: Sequence) -> list[int]:
    """How many context rows each context row of this pass sees."""
    if sequence.step:
        return [own.length] * own.context_at.shape[1]
    return sequence.plan.prefill_limits.context


def _neighbor_rows(
    model: ArmdLM, own: GroupInputs, at: Int[Tensor, "b x"], slot: Int[Tensor, "b x"]
) -> Float[Tensor, "b x d"]:
    """The first rows of query rows: the token in their slot, or what stands for an unknown one."""
    cache, group, known = own.cache, own.group, slot < own.length

    def tokens(slots: list[list[int]]) -> Int[Tensor, "b y"]:
        rows = zip(group, slots, strict=True)
        found = [[s.tokens[s.plan.position[k - 1]] if k else -1 for k in row] for s, row in rows]
        return torch.tensor(found)

    near = _embed(model, tokens(slot.where(known, 0).tolist()))
    if bool(known.all()):
        return near
    missing = [list(range(cache.prefix_rows, own.length))] * len(group)
    key_at = [
        [s.plan.position[k - 1] + 1 if k else 0 for k in row]
        for s, row in zip(group, missing, strict=True)
    ]
    key = cache.code[torch.tensor(key_at, device=at.device).long()]
    cache.prefix_state = append_to_state(cache.prefix_state, key, _embed(model, tokens(missing)))
    cache.prefix_rows = own.length
    unknown = model.first_query_from_sums(cache.code[at + 1] @ cache.prefix_state, None)
    return near.where(known.to(at.device)[..., None], unknown)
