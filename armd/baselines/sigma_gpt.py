"""Sigma-GPT (Pannatier et al. 2024), in our layers: a GPT whose tokens come in any order;
with each token it reads where the next one will stand. One stream of half our rows; blocks of one
token alone.

The paper adds two absolute positions to each row, the token's and the next one's. Beside rotary
positions that does not do: a row that looks around from where its own token stands learnt nothing
but the frequencies of tokens. So its queries are turned to the place that it writes to, its keys
to the place of its token.
"""

import torch
from torch import nn

from ..errors import ArmdError
from ..model.layers import Adapted
from ..model.modeling_armd import ArmdLM
from ..model.order import Order
from ..model.prefix import PositionCode
from ..model.shapes import Float, Int, Tensor
from ..model.streams import CausalLayer
from .configuration import BaselineConfig


class SigmaLayer(CausalLayer):
    """Its turns are two in one: of the key, then of the query."""

    def keys_values(
        self,
        rows: Float[Tensor, "b n d"],
        rope: Float[Tensor, "b2 n ropes 2"],
        adapted: Adapted = None,
    ) -> tuple[Float[Tensor, "b n h e"], Float[Tensor, "b n h e"]]:
        return super().keys_values(rows, rope.chunk(2, -2)[0])

    def queries(
        self,
        rows: Float[Tensor, "b n d"],
        rope: Float[Tensor, "b2 n ropes 2"],
        adapted: Adapted = None,
    ) -> Float[Tensor, "b n h e"]:
        return super().queries(rows, rope.chunk(2, -2)[1])


class SigmaGpt(ArmdLM):
    """Row k carries token k-1 and a code of the position of token k; its logits are for token k.
    Orders are learnt at random."""

    config_class = BaselineConfig
    causal_layer = SigmaLayer
    _no_split_modules = ["SigmaLayer"]  # noqa: RUF012

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.position_code = PositionCode(config.d_model, config.d_model)
        self._init_linears(self.position_code)
        # about as large as the embeddings it is added to: a larger code hides the tokens
        nn.init.normal_(
            self.position_code.outer.weight, std=3 * config.init_std * config.d_model**-0.5
        )

    def position_codes(self, length: int) -> Float[Tensor, "n p"]:
        return self.position_code(length)

    def shift_inputs(
        self,
        context: Float[Tensor, "b n d"],
        code: Float[Tensor, "length p"],
        wanted: Int[Tensor, "b2 n"],
    ) -> Float[Tensor, "b n d"]:
        return context + nn.functional.embedding(wanted, code).to(context.dtype)

    def shift_rope(
        self, own: Float[Tensor, "b n half 2"], wanted: Float[Tensor, "b2 n half 2"]
    ) -> Float[Tensor, "b2 n ropes 2"]:
        return torch.cat([own, wanted.to(own.dtype)], -2)

    @property
    def any_order(self) -> bool:
        return True

    def check_order(self, order: Order) -> None:
        if not order.single_token_blocks:
            raise ArmdError(
                "sigma-gpt draws one token at a time, but this order has larger blocks; use one "
                "stream, left to right or random"
            )
