"""A pass: the rows of one block of each text that is being written, through every weight together.

The context rows of what was just drawn and the query rows of the next block go side by side; each
looks into the cache of its own text. Texts of unlike lengths and blocks share a pass without any
padding, and only products row by row are shared: a text gets what it would get alone.
"""

from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ..model.modeling_armd import ArmdLM
from ..model.prefix import append_to_state, prefix_sums_in_blocks
from ..model.shapes import Float, Int, Tensor
from ..native.library import library
from ..native.packed import FastLM
from ..native.structs import ForwardInput, row_pointers
from .kv_cache import Cache, Entry, Mark, Placing
from .ragged_layers import FEW, Crossing


@dataclass(frozen=True)
class Part:
    """What one cache takes part with in a pass: the context rows of what was just drawn, and the
    query rows of the next block. Without a placing all of them enter next and see everything.
    Positions count BOS as 0, so tokens stand at 1..n."""

    cache: Cache
    context: Float[Tensor, "b m d"]
    context_position: Int[Tensor, "b m"]
    query_position: Int[Tensor, "b k"]
    placing: Placing | None = None

    @property
    def rows(self) -> int:
        """Of each text."""
        return self.context_position.shape[1] + self.query_position.shape[1]


@torch.no_grad()
def advance_together(model: ArmdLM, parts: Sequence[Part]) -> list[Tensor]:
    """One pass of several caches. Returns the final query rows of each."""
    few = [part for part in parts if part.rows <= FEW]
    if len(few) < len(parts) > 1:
        passed = iter(advance_together(model, few) if few else [])
        return [next(passed) if p.rows <= FEW else advance_together(model, [p])[0] for p in parts]
    if few and isinstance(model, FastLM) and model.whole and model.config.query != "shift":
        return _decoded(model, parts)
    if model.config.query == "shift":
        flow, above = _shifted(model, parts), 0
        rows = flow.rows
    else:
        flow, above = _started(model, parts), model.config.n_two_stream
        # nothing above the two streams reads the context rows
        rows = flow.low.through(model, range(above), flow.rows, flow.low_turn, last=True)
    layers = range(above, len(model.layers))
    rows = flow.high.through(model, layers, rows, flow.high_turn)
    final = zip(model.norm(rows)[0].split(flow.high.sizes), parts, strict=True)
    return [rows.view(len(part.context), -1, rows.shape[1]) for rows, part in final]


def _decoded(model: FastLM, parts: Sequence[Part]) -> list[Tensor]:
    """The pass in one call of forward.c."""
    context = torch.cat([part.context.flatten(0, 1) for part in parts])
    context_at = torch.cat([part.context_position.flatten() for part in parts])
    query_at = torch.cat([part.query_position.flatten() for part in parts])
    tables = max((part.cache for part in parts), key=lambda cache: len(cache.code))
    out = context.new_empty(len(query_at), context.shape[1])
    entered = [_enter(part) for part in parts]
    texts = [text for rows in entered for text in rows.texts]
    told = (ForwardInput * len(texts))(*texts)
    given = (tables.code, tables.turn, context, context_at, query_at, out)
    where = (tensor.data_ptr() for tensor in given)
    if library().forward_pass(byref(model.address()), told, len(texts), *where):
        raise MemoryError("no memory for a decoding pass")
    final = zip(out.split([part.query_position.numel() for part in parts]), parts, strict=True)
    return [rows.view(*part.query_position.shape, -1) for rows, part in final]


class Entered(NamedTuple):
    """What forward.c gets of a part's texts, and what keeps those tensors alive."""

    texts: list[tuple[int | None, ...]]
    held: list[Tensor | None]


def _enter(part: Part) -> Entered:
    """Mark what the part enters."""
    cache, placing, old = part.cache, part.placing, part.cache.mark
    (batch, m), k = part.context_position.shape, part.query_position.shape[1]
    grown = torch.empty_like(old.state)
    tables: list[Tensor | None] = [old.state, grown, *[None] * 5]
    if placing is None:
        cache.mark = Mark(old.context + m, old.query + k, grown)
    else:
        cache.mark = Mark(placing.context, placing.query, grown)
        limit = torch.cat([placing.context_limit, placing.strict_limit], 1)
        low, high = (placing.context_slot, limit), (placing.query_slot, placing.query_limit)
        tables[2:] = [table.contiguous() for table in (placing.strict_limit, *low, *high)]
    counts = (m, k, old.context, cache.mark.context, old.query, cache.mark.query, cache.spare)
    each = zip(cache.places, *(row_pointers(table, batch) for table in tables), strict=True)
    return Entered([(k.address, v.address, *at, *counts) for (k, v), *at in each], tables)


@dataclass(frozen=True)
class Flow:
    """A pass about to enter the layers: its first rows, text by text, and how they and their turns
    go through the two-stream layers and those above."""

    rows: Float[Tensor, "1 n d"]
    low: Crossing
    low_turn: Float[Tensor, "1 n half 2"]
    high: Crossing
    high_turn: Float[Tensor, "1 k half 2"]


def _started(model: ArmdLM, parts: Sequence[Part]) -> Flow:
    """Query rows start from what the state of their text gives them. What is looked up or worked
    out row by row is so for all parts at once."""
    context = torch.cat([part.context_position.flatten() for part in parts])
    query = torch.cat([part.query_position.flatten() for part in parts])
    tables = max((part.cache for part in parts), key=lambda cache: len(cache.code))
    keys = tables.code[context].split([part.context_position.numel() for part in parts])
    queries = tables.code[query].split([part.query_position.numel() for part in parts])
    old = [part.cache.mark for part in parts]
    sums = [_take_in(*given).flatten(0, 1) for given in zip(parts, keys, queries, strict=True)]
    count = None
    if model.config.query == "mean":
        count = torch.cat([_strict_limit(part).flatten() for part in parts])
    entered = [_entries(*given) for given in zip(parts, old, strict=True)]
    low, high = (Crossing(list(entries)) for entries in zip(*entered, strict=True))
    rows = torch.cat(
        [part.context.flatten(0, 1) for part in parts]
        + [model.first_query_from_sums(torch.cat(sums), count)]
    )
    where = torch.cat([context, query])
    if sum(len(part.context) for part in parts) > 1:
        braid = low.braid.to(rows.device, non_blocking=True)
        rows, where = rows[braid], where[braid]
    return Flow(rows[None], low, tables.turn[where][None], high, tables.turn[query][None])


def _take_in(
    part: Part, key: Float[Tensor, "bm p"], query: Float[Tensor, "bk p"]
) -> Float[Tensor, "b k d"]:
    """Add the context rows to the prefix state and mark what the part enters. Returns what its
    query rows sum up."""
    cache, placing, old = part.cache, part.placing, part.cache.mark
    (batch, m), k = part.context_position.shape, part.query_position.shape[1]
    key, query = key.view(batch, m, -1), query.view(batch, k, -1)
    if placing is not None:
        key = key * (placing.context_slot != cache.spare)[..., None]
    state = append_to_state(old.state, key, part.context)
    grown = (old.context + m, old.query + k)
    cache.mark = Mark(*(grown if placing is None else (placing.context, placing.query)), state)
    if placing is not None and old.context == 0:
        return prefix_sums_in_blocks(query, key, part.context, placing.strict_limit)
    return query @ state


def _strict_limit(part: Part) -> Int[Tensor, "b k"]:
    """How many context rows each query row sums up."""
    if part.placing is not None:
        return part.placing.strict_limit
    return torch.full_like(part.query_position, part.cache.mark.context)


def _entries(part: Part, old: Mark) -> tuple[Entry, Entry]:
    """Where a part enters the two-stream layers and those above, from the mark before it to the
    one behind."""
    cache, placing = part.cache, part.placing
    m, k = part.context_position.shape[1], part.query_position.shape[1]
    low = Entry(cache, m + k, m, old.context, cache.mark.context)
    high = Entry(cache, k, k, old.query, cache.mark.query)
    if placing is None:
        return low, high
    limit = torch.cat([placing.context_limit, placing.strict_limit], 1)
    low = replace(low, slot=placing.context_slot, limit=limit)
    return low, replace(high, slot=placing.query_slot, limit=placing.query_limit)


def _shifted(model: ArmdLM, parts: Sequence[Part]) -> Flow:
    """With the shifted query there are only context rows; each predicts the token after it."""
    entries, rows, turn = zip(*(_shift(model, part) for part in parts), strict=True)
    crossing, turns = Crossing(list(entries)), torch.cat(turn)[None]
    return Flow(torch.cat(rows)[None], crossing, turns, crossing, turns)


def _shift(model: ArmdLM, part: Part) -> tuple[Entry, Tensor, Tensor]:
    cache, placing, old = part.cache, part.placing, part.cache.mark
    m = part.context_position.shape[1]
    count = old.context + m if placing is None else placing.context
    cache.mark = Mark(count, 0, old.state)
    entry = Entry(cache, m, m, old.context, count)
    if placing is not None:
        entry = replace(entry, slot=placing.context_slot, limit=placing.context_limit)
    # behind the last token of a shorter prompt stands padding: what it wants comes at the end
    wanted = part.query_position.where(
        part.query_position < cache.spare, part.query_position[:, -1:]
    )
    rows = model.shift_inputs(part.context, cache.code, wanted)
    turn = model.shift_rope(cache.turn[part.context_position], cache.turn[wanted])
    return entry, rows.flatten(0, 1), turn.flatten(0, 1)
