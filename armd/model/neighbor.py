"""query="neighbor": which query rows are context rows already, and which are needed besides.

The query row of position p starts from the token at p - 1 where that is known. The context row of
that token has the same input and the same position. Where both see the same rows, too, they are one
row. So a pass takes the context rows and only those query rows that are none of them: no extra row
left to right, 2 (S - 1) for S streams, about 2 rho for rho shuffled positions.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from .adapted_linear import out_of_order
from .attention_inputs import AttentionInputs, block_limits, context_position
from .configuration_armd import ArmdConfig
from .layers import Adapted, KeyValue, Mask, mask_from_limit, right_keys, rope_cos_sin
from .order import Order
from .shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class ExtraRows:
    """The query rows that a pass takes besides the context rows. Texts with fewer than others have
    rows at the end that nothing reads."""

    position: Int[Tensor, "b x"]
    """The position each row predicts; its RoPE position, too."""
    limit: Int[Tensor, "b x"]
    """How many context rows it sees."""
    known: Bool[Tensor, "b x"]
    """Whether the token before it is among them."""
    neighbor: Int[Tensor, "b x"]
    """The context row of that token, if known."""
    source: Int[Tensor, "b n"]
    """Where the final row of each token is: among context rows 0..n-1, then these."""

    @property
    def count(self) -> int:
        return self.position.shape[1]

    def source_in_batch(self, batch: int) -> Int[Tensor, "bn"]:
        """The same, where the context rows of all texts come first, then all extra rows."""
        text = torch.arange(batch, device=self.source.device)[:, None]
        n = self.source.shape[1]
        own, extra = text * n, batch * n - n + text * self.count
        return (self.source + torch.where(self.source < n, own, extra)).flatten()


def extra_rows(order: Order) -> ExtraRows | None:
    """Of an order of shape (batch, n); None left to right, the only order that has none."""
    if order.is_left_to_right:
        return None
    n, position = len(order), order.position
    limit, reach, row, known = _neighbors(order)
    shared = known & (reach.gather(1, row) == limit)
    count = int((~shared).sum(1).max())
    # those needed first, in generation order; then, to fill up, some that are shared
    chosen = shared.long().argsort(dim=1, stable=True)[:, :count]
    number = torch.arange(n, n + count, device=position.device).expand_as(chosen)
    return ExtraRows(
        position=position.gather(1, chosen),
        limit=limit.gather(1, chosen),
        known=known.gather(1, chosen),
        neighbor=row.gather(1, chosen),
        source=torch.where(shared, row, torch.zeros_like(row).scatter(1, chosen, number)),
    )


def _neighbors(order: Order) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How many rows each query row and each context row sees; the context row of the token before
    each position (or any, where it has none), and whether the query sees it."""
    limit, reach = block_limits(order)
    # BOS stands before position 0; the token generated k-th is context row k + 1
    before = F.pad(order.inverse() + 1, (1, 0))
    row = before.gather(1, order.position)
    known = row < limit
    return limit, reach, row.clamp(max=len(order) - 1), known


def needs_extra_row(order: Order) -> Bool[Tensor, "b n"]:
    """Which query rows, in generation order, are no context rows."""
    order = order if order.batch is not None else order.rows(1)
    limit, reach, row, known = _neighbors(order)
    return ~(known & (reach.gather(1, row) == limit))


@dataclass(frozen=True)
class NeighborInputs:
    """Positions and masks where all rows of a batch are in one sequence: the context rows of all
    texts, then the extra ones."""

    batch: int
    context_rope: Float[Tensor, "1 bn half 2"]
    rope: Float[Tensor, "1 rows half 2"]
    """Of all rows."""
    context: Mask
    """Context row to context row."""
    extra: Mask
    """Extra row to context row."""
    adapted: Adapted = None
    """Which of all rows are out of order, if the model has adapters for those."""
    before: KeyValue | None = None
    """Keys and values of context rows before these, which a layer has made already."""


def neighbor_inputs(
    order: Order,
    extra: ExtraRows | None,
    config: ArmdConfig,
    batch: int,
    dtype: torch.dtype,
    *,
    read: int = 0,
) -> NeighborInputs | AttentionInputs:
    """Without extra rows, those of one ordinary stream. `read`: context rows that are left out,
    because their keys and values are there already."""
    position, n, reach = context_position(order), len(order), block_limits(order)[1][:, read:]
    rows_at = position[:, read:]
    context_rope = rope_cos_sin(rows_at, config).to(dtype)
    if extra is None:
        mask = mask_from_limit(reach, n) if read else None
        return AttentionInputs(context_rope, context_rope, limit=None, query=mask)
    right, right_of_extra = (right_keys(at, position, config) for at in (rows_at, extra.position))
    context: Mask = None
    if right is not None or not order.single_token_blocks or read:
        context = mask_from_limit(reach, n, right)
    extra_rope = rope_cos_sin(extra.position, config).to(dtype)
    ropes = [_one_sequence(rope, batch) for rope in (context_rope, extra_rope)]
    strict = mask_from_limit(extra.limit, n, right_of_extra)
    adapted = None
    if config.adapter_rank:
        rows = [(rows_at, reach), (extra.position, extra.limit)]
        out = (out_of_order(at, position, visible) for at, visible in rows)
        adapted = torch.cat([_one_sequence(one.to(dtype), batch) for one in out], 1)
    return NeighborInputs(batch, ropes[0], torch.cat(ropes, 1), context, strict, adapted)


def _one_sequence(table: Tensor, batch: int) -> Float[Tensor, "1 rows ..."]:
    return table.expand(batch, *table.shape[1:]).flatten(0, 1)[None]
