"""The loss of adaptation: near the source's own left-to-right distribution, or near the text.

A sampled token says little about a distribution of 49,152; the source's own distribution for the
same token says all of it. So a few hundred windows suffice, and left to right nothing is unlearnt.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..model.order import Order
from ..model.shapes import Float, Int, Tensor

ROWS = 256
CLOSE = 6
"""Tokens to a known one on the right, within which the text itself is the better teacher: the
source has not seen what comes after."""


class _Distilled(torch.autograd.Function):
    """sum_i weight_i * (text_i * -log p(target_i) + (1 - text_i) * KL(source_i || ours_i)), a
    chunk of logits at a time; gradients are made in the forward pass, while these are at hand."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, source: Tensor | None, *rest: Tensor):
        d_rows = torch.empty_like(rows)
        d_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=torch.float64, device=rows.device)
        # new memory of this size costs more than to fill it
        logits = rows.new_empty(1 if source is None else 3, len(matrix) * min(ROWS, len(rows)))
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            chunk = logits[:, : len(matrix) * len(rows[part])].view(len(logits), len(matrix), -1)
            torch.mm(matrix, rows[part].mT, out=chunk[0])
            if source is not None:
                torch.mm(matrix, source[part].mT, out=chunk[1])
            total += _chunk(chunk, *(t[part] for t in rest))
            torch.mm(chunk[0].mT, matrix, out=d_rows[part])
            if d_matrix is not None:
                d_matrix.addmm_(chunk[0], rows[part])
        ctx.save_for_backward(d_rows, d_matrix)
        return total.to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_rows, d_matrix = ctx.saved_tensors
        d_matrix = None if d_matrix is None else d_matrix * grads[0]
        return d_rows * grads[0], d_matrix, None, None, None, None


def _chunk(
    logits: Float[Tensor, "k v r"], target: Tensor, weight: Tensor, text: Tensor
) -> Float[Tensor, ""]:
    """The loss of logits, ours and perhaps the source's, and room for as many again. Leaves its
    gradient to ours in their place."""
    ours, shares = logits[0], weight * text
    at_target = ours.gather(0, target[None])[0]
    nearer, their_sum = torch.zeros_like(weight), torch.ones_like(weight)
    if len(logits) > 1:
        theirs, apart = logits[1:]
        torch.sub(theirs, ours, out=apart)
        their_top, their_sum = _exponentials(theirs)
        nearer = apart.mul_(theirs).sum(0) / their_sum - their_top - their_sum.log()
    top, own_sum = _exponentials(ours)
    above = top + own_sum.log()
    loss = shares * (above - at_target) + (weight - shares) * (above + nearer)
    ours *= weight / own_sum
    if len(logits) > 1:
        ours.addcmul_(logits[1], (weight - shares) / their_sum, value=-1)
    ours.scatter_add_(0, target[None], -shares[None])
    return loss.double().sum()


def _exponentials(logits: Float[Tensor, "v r"]) -> tuple[Float[Tensor, "r"], Float[Tensor, "r"]]:
    """The top one of each row and the sum of exp(logit - top), which take the logits' place."""
    top = logits.amax(0)
    return top, logits.sub_(top).exp_().sum(0)


def distilled_loss(
    rows: Float[Tensor, "m d"],
    matrix: Float[Tensor, "v d"],
    source: Float[Tensor, "m d"] | None,
    target: Int[Tensor, "m"],
    weight: Float[Tensor, "m"],
    text: Float[Tensor, "m"],
) -> Float[Tensor, ""]:
    """As above, over the rows whose weight is not zero. `source` holds the source's final rows for
    the same tokens; without it the text alone teaches."""
    some = weight.nonzero().flatten()
    theirs = None if source is None else source[some]
    if theirs is None:
        text = torch.ones_like(text)
    return _Distilled.apply(rows[some], matrix, theirs, target[some], weight[some], text[some])


def distance_to_the_right(order: Order) -> Int[Tensor, "b n"]:
    """How far from each token, when it is drawn, the next known one on its right is; 0 for none."""
    position, block = order.position, order.block
    gap = position[:, None, :] - position[:, :, None]  # row k, key j
    known = (block[:, None, :] < block[:, :, None]) & (gap > 0)
    far = position.shape[1] + 1
    nearest = gap.masked_fill(~known, far).amin(-1)
    return nearest.masked_fill(nearest == far, 0)


def share_of_text(
    right: Int[Tensor, "b n"], distill: float, right_text: float
) -> Float[Tensor, "b n"]:
    """How much of each token's loss is the text's own: none where the source has seen as much as
    we have, all next to known text on the right, `right_text` further away from it."""
    share = torch.where(right > 0, right_text, 0.0).masked_fill((right > 0) & (right <= CLOSE), 1.0)
    return share.clamp(min=1 - distill)
