"""What an order's rows may see, and where they stand: worked out once, used by every layer."""

from dataclasses import dataclass

import torch
from torch import nn

from .configuration_armd import ArmdConfig
from .layers import KeyValue, Mask, mask_from_limit, rope_cos_sin
from .order import Order
from .shapes import Float, Int, Tensor


@dataclass(frozen=True)
class AttentionInputs:
    """What each row may see and where it stands, worked out once and used by every layer."""

    context_rope: Float[Tensor, "b n half 2"]
    query_rope: Float[Tensor, "b rows ropes 2"]
    limit: Int[Tensor, "texts k"] | None
    """How many context rows each query row sees (M^sc); None for 1, 2, 3 ...: single tokens."""
    strict: Mask = None
    """M^sc: query row to context row, earlier blocks only."""
    context: Mask = None
    """M^c among context rows: own and earlier blocks."""
    query: Mask = None
    """M^c among query rows, for the layers above the two streams."""
    before: KeyValue | None = None
    """Keys and values of rows before these, which a layer has made already."""


def context_position(order: Order) -> Int[Tensor, "b n"]:
    """Where the context rows stand: BOS at 0, tokens at 1..n. The last token drawn has no row,
    because no query may see it."""
    return nn.functional.pad(order.position[:, :-1] + 1, (1, 0))


def block_limits(order: Order) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
    """How many context rows each query row sees, those of earlier blocks, and each context row,
    those of its own block too."""
    context_block = nn.functional.pad(order.block[:, :-1], (1, 0), value=-1)
    limit = torch.searchsorted(context_block, order.block)
    return limit, torch.searchsorted(context_block, context_block, right=True)


def attention_inputs(order: Order, config: ArmdConfig, dtype: torch.dtype) -> AttentionInputs:
    """Positions and masks of an order's rows. Blocks of one token need no mask at all: query row k
    sees context rows 0..k, so both streams are plainly triangular over the same keys."""
    context_rope = rope_cos_sin(context_position(order), config).to(dtype)
    shift = config.query == "shift"
    query_rope = context_rope if shift else rope_cos_sin(order.position + 1, config).to(dtype)
    if order.single_token_blocks:
        return AttentionInputs(context_rope, query_rope, limit=None)
    n = len(order)
    limit, reach = block_limits(order)
    among = torch.searchsorted(order.block, order.block, right=True)
    masks: list[Mask] = [mask_from_limit(m, n) for m in (limit, reach, among)]
    return AttentionInputs(context_rope, query_rope, limit, masks[0], masks[1], masks[2])
