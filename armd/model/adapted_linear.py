"""A linear layer with a low-rank change that only rows out of order take.

A row is in order if it sees exactly the tokens before it, as every row does left to right. Such
rows pass through the weights alone: left to right the model is the same, bit for bit, whatever the
change has learnt.
"""

import torch
from torch import nn

from .shapes import Float, Int, Tensor


class AdaptedLinear(nn.Linear):
    """W x, and B^T A x for rows out of order. Rank 0: an ordinary linear layer."""

    lora_a: nn.Parameter | None
    lora_b: nn.Parameter | None

    def __init__(self, inputs: int, outputs: int, *, bias: bool, rank: int = 0) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.register_parameter("lora_a", None)
        self.register_parameter("lora_b", None)
        if rank:
            self.add_adapter(rank)

    def add_adapter(self, rank: int) -> None:
        """One that changes nothing yet."""
        (outputs, inputs), like = self.weight.shape, self.weight
        self.lora_a = nn.Parameter(like.new_empty(rank, inputs))
        self.lora_b = nn.Parameter(like.new_empty(rank, outputs))
        self.reset_adapter()

    def reset_adapter(self) -> None:
        if self.lora_a is not None and self.lora_b is not None:
            nn.init.uniform_(self.lora_a, -(self.in_features**-0.5), self.in_features**-0.5)
            nn.init.zeros_(self.lora_b)

    def forward(
        self, input: Float[Tensor, "*b m"], adapted: Float[Tensor, "*#b 1"] | None = None
    ) -> Float[Tensor, "*b n"]:
        """`adapted`: 1 for rows out of order, 0 for others; None: there are none."""
        return with_adapter(super().forward(input), input, adapted, self.lora_a, self.lora_b)


def with_adapter(
    out: Float[Tensor, "*b n"],
    rows: Float[Tensor, "*b m"],
    adapted: Float[Tensor, "*#b 1"] | None,
    a: Float[Tensor, "rank m"] | None,
    b: Float[Tensor, "rank n"] | None,
) -> Float[Tensor, "*b n"]:
    """What a linear layer makes of rows, and what its adapter adds."""
    if adapted is None or a is None or b is None:
        return out
    low = (rows @ a.mT * adapted).flatten(0, -2)
    return torch.addmm(out.flatten(0, -2), low, b).view(out.shape)


def taken(
    adapted: Float[Tensor, "b n 1"] | None, rows: slice | Tensor = slice(None)
) -> tuple[Float[Tensor, "b m 1"], ...]:
    """Of some rows alone, as the last argument of a layer's methods: none where there are no
    adapters, so that methods of other layers need not take it."""
    return () if adapted is None else (adapted[:, rows],)


def out_of_order(
    rows_at: Int[Tensor, "b n"], keys_at: Int[Tensor, "b m"], visible: Int[Tensor, "b n"]
) -> Float[Tensor, "b n 1"]:
    """1 for rows that do not see exactly positions 0 up to their own, 0 for those that do. Row k
    sees the first visible_k of the keys; RoPE positions, of which BOS has 0."""
    rightmost = keys_at.cummax(1).values.expand(len(visible), -1).gather(1, visible - 1)
    in_order = (visible == rows_at + 1) & (rightmost == rows_at)
    return (~in_order).float()[..., None]
