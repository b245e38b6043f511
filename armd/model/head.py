"""The head: from final rows to probabilities, never holding more than a chunk of the logits.

A row of logits is as wide as the vocabulary, so all rows together dwarf the model. Where only the
loss is wanted, each chunk's logits are made, used for the loss and its gradients, and overwritten.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .errors import ArmdError
from .shapes import Float, Int, Tensor

ROWS = 256
IGNORE = -100


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which to add up: float32, or float64 where everything is."""
    return torch.promote_types(dtype, torch.float32)


class _WeightedLoss(torch.autograd.Function):
    """sum_i weight_i * -log p(target_i). The gradients are made in the forward pass, while a
    chunk's logits are at hand: recomputing them would cost a third of the head again."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        low = matrix.to(rows.dtype)  # under autocast the weights are wider than the rows
        logits = rows.new_empty(len(matrix) * min(ROWS, len(rows)))
        d_rows, d_matrix = torch.empty_like(rows), torch.zeros_like(matrix)
        total = torch.zeros((), dtype=accumulate_dtype(rows.dtype), device=rows.device)
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            chunk = logits[: len(matrix) * len(rows[part])].view(len(matrix), -1)
            total += _chunk_loss(chunk, rows[part], low, target[part], weight[part])
            torch.mm(chunk.mT, low, out=d_rows[part])
            if low is matrix:
                d_matrix.addmm_(chunk, rows[part])
            else:
                d_matrix += chunk @ rows[part]
        ctx.save_for_backward(d_rows, d_matrix)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_rows, d_matrix = ctx.saved_tensors
        return d_rows * grads[0].to(d_rows.dtype), d_matrix.mul_(grads[0]), None, None


def _chunk_loss(
    logits: Tensor, rows: Tensor, matrix: Tensor, target: Tensor, weight: Tensor
) -> Tensor:
    """The chunk's loss; leaves weight_i * (p - onehot(target_i)), its gradient, in `logits`."""
    at_target, sum_exp = _exponentials(logits, rows, matrix, target)
    loss = (weight * (sum_exp.log() - at_target)).sum()
    logits.mul_((weight / sum_exp).to(logits.dtype))
    logits.scatter_add_(0, target[None], -weight[None].to(logits.dtype))
    return loss


def _exponentials(
    logits: Tensor, rows: Tensor, matrix: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Each row's logit at its target, below its top one, and the sum of exp(logit - top), which are
    left in `logits`. These are (vocabulary, rows): with the long side first the product is half as
    fast again on a CPU."""
    torch.mm(matrix, rows.mT, out=logits)
    top = logits.amax(0)
    at_target = logits.gather(0, target[None])[0] - top
    logits.sub_(top).exp_()
    return at_target, logits.sum(0, dtype=accumulate_dtype(logits.dtype))


def weighted_loss(
    rows: Float[Tensor, "m d"],
    matrix: Float[Tensor, "v d"],
    target: Int[Tensor, "m"],
    weight: Float[Tensor, "m"],
) -> Float[Tensor, ""]:
    """sum_i weight_i * -log p(target_i); targets of -100 count nothing."""
    check_targets(target, len(matrix))
    if torch.is_autocast_enabled(rows.device.type):
        rows = rows.to(torch.get_autocast_dtype(rows.device.type))
    scored = target != IGNORE
    weight = torch.where(scored, weight, torch.zeros_like(weight))
    target = target.where(scored, 0)
    if torch.is_grad_enabled() and (rows.requires_grad or matrix.requires_grad):
        return _WeightedLoss.apply(rows, matrix, target, weight)
    return -(weight * target_log_probs(rows, matrix, target)).sum()


def check_targets(target: Int[Tensor, "m"], size: int) -> None:
    """Each is a token or -100. Only on a CPU: elsewhere the check would wait for the device."""
    if target.device.type != "cpu":
        return
    wrong = target[((target < 0) | (target >= size)) & (target != IGNORE)]
    if len(wrong):
        raise ArmdError(
            f"label {int(wrong[0])} is no token of the vocabulary of {size}; give {IGNORE} where "
            "nothing is scored"
        )


def target_log_probs(
    rows: Float[Tensor, "m d"], matrix: Float[Tensor, "v d"], target: Int[Tensor, "m"]
) -> Float[Tensor, "m"]:
    """log p(target_i) for each row, a chunk of logits at a time, with gradients if wanted."""
    parts = [(r, matrix, t) for r, t in zip(rows.split(ROWS), target.split(ROWS), strict=True)]
    if torch.is_grad_enabled():
        made = [checkpoint(_chunk_log_probs, *part, use_reentrant=False) for part in parts]
    elif accumulate_dtype(rows.dtype) == rows.dtype:
        buffer = rows.new_empty(len(matrix) * min(ROWS, len(rows)))
        made = [_in_place_log_probs(buffer, *part) for part in parts]
    else:  # too coarse to hold exponentials
        made = [_chunk_log_probs(*part) for part in parts]
    return torch.cat(made) if made else rows.new_empty(0)


def _in_place_log_probs(buffer: Tensor, rows: Tensor, matrix: Tensor, target: Tensor) -> Tensor:
    logits = buffer[: len(matrix) * len(rows)].view(len(matrix), -1)
    at_target, sum_exp = _exponentials(logits, rows, matrix, target)
    return at_target - sum_exp.log()


def _chunk_log_probs(rows: Tensor, matrix: Tensor, target: Tensor) -> Tensor:
    logits = F.linear(rows, matrix).to(accumulate_dtype(rows.dtype))
    return logits.log_softmax(1).gather(1, target[:, None]).squeeze(1)
