"""Sigma-GPT (Pannatier et al. 2024), in our layers: a GPT whose tokens come in any order, told with
each token where the next one will stand. One stream of half our rows; blocks of one token alone.
"""

from torch import nn

from ..errors import ArmdError
from ..modeling_armd import ArmdLM
from ..order import Order
from ..prefix import PositionCode
from ..shapes import Float, Int, Tensor
from .configuration import BaselineConfig


class SigmaGpt(ArmdLM):
    """Row k carries token k-1, turned to its own position, and a code of the position of token k;
    its logits are for token k. Orders are learnt at random."""

    config_class = BaselineConfig

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.position_code = PositionCode(config.d_model, config.d_model)
        self._init_linears(self.position_code)

    def codes(self, length: int) -> Float[Tensor, "n p"]:
        return self.position_code(length)

    def one_stream(
        self,
        context: Float[Tensor, "b n d"],
        code: Float[Tensor, "length p"],
        wanted: Int[Tensor, "b2 n"],
    ) -> Float[Tensor, "b n d"]:
        return context + nn.functional.embedding(wanted, code).to(context.dtype)

    @property
    def any_order(self) -> bool:
        return True

    def check_order(self, order: Order) -> None:
        if not order.singles:
            raise ArmdError(
                "sigma-gpt draws one token at a time, but this order has larger blocks; use one "
                "stream, left to right or random"
            )
