"""XLNet's two streams (Yang et al. 2019), in our layers: both go all the way up, and every query
row starts from the same learnt row. Ours starts from what the row sees, and ends one stream early.
"""

import torch
from torch import nn

from ..model.attention_inputs import AttentionInputs
from ..model.modeling_armd import ArmdLM
from ..model.order import Order
from ..model.shapes import Float, Int, Tensor
from .configuration import BaselineConfig


class Xlnet(ArmdLM):
    """Any order, any blocks, in one pass; orders are learnt at random."""

    config_class = BaselineConfig

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.start = nn.Parameter(torch.empty(config.d_model))
        nn.init.normal_(self.start, std=config.init_std)

    def _first_query(self, context: Tensor, order: Order, inputs: AttentionInputs) -> Tensor:
        return self.first_query_from_sums(context, torch.ones_like(order.position))

    def first_query_from_sums(
        self, sums: Float[Tensor, "*b n d"], count: Int[Tensor, "*b2 n"] | None
    ) -> Float[Tensor, "*b n d"]:
        """G^0: where a row stands it learns from rotary, once it sees other rows."""
        return self.query_norm(self.start[None]).expand_as(sums)
