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
        target, weight, text = rest
        d_rows = torch.zeros_like(rows)
        d_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            theirs = None if source is None else source[part]
            loss, grad = _chunk(rows[part], matrix, theirs, target[part], weight[part], text[part])
            total += loss
            torch.mm(grad.mT, matrix, out=d_rows[part])
            if d_matrix is not None:
                d_matrix.addmm_(grad, rows[part])
        ctx.save_for_backward(d_rows, d_matrix)
        return total.to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_rows, d_matrix = ctx.saved_tensors
        d_matrix = None if d_matrix is None else d_matrix * grads[0]
        return d_rows * grads[0], d_matrix, None, None, None, None


def _chunk(
    rows: Tensor,
    matrix: Tensor,
    source: Tensor | None,
    target: Tensor,
    weight: Tensor,
    text: Tensor,
) -> tuple[Tensor, Tensor]:
    """The chunk's loss, and its gradient to the logits, (vocabulary, rows)."""
    ours = (matrix @ rows.mT).log_softmax(0)
    nll = -ours.gather(0, target[None])[0]
    loss = weight * text * nll
    grad = ours.exp()
    if source is not None and bool((text < 1).any()):
        theirs = (matrix @ source.mT).log_softmax(0)
        mass = theirs.exp()
        apart = (mass * (theirs - ours)).sum(0)
        loss = loss + weight * (1 - text) * apart
        grad -= mass * (1 - text)
    grad.scatter_add_(0, target[None], -text[None])
    grad *= weight
    return loss.double().sum(), grad


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
