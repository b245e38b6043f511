"""Attention of rows that each see the first few keys, on a CPU, with a bias on keys to their right.

torch's fast kernel takes such a mask, but reads every key of every row, and has no gradient for the
mask. So rows go in groups, each with only the keys that one of them sees, and the gradient of the
bias is worked out from the kernel's own results.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .shapes import Bool, Float, Int, Tensor

GROUP = 128
"""Rows of a group."""


@dataclass(frozen=True)
class LimitMask:
    """Row k sees keys 0..limit_k - 1; of those, some may stand to the right of it."""

    limit: Int[Tensor, "b n"]
    keys: int
    ends: tuple[int, ...]
    """The largest limit of each group of rows."""
    right: Bool[Tensor, "b 1 n m"] | None = None
    """Keys that a row sees to its right; None if there are none, or if no bias is added to them."""

    def dense(self) -> Bool[Tensor, "b 1 n m"]:
        """The mask written out."""
        return (torch.arange(self.keys, device=self.limit.device) < self.limit[..., None])[:, None]


def limit_mask(
    limit: Int[Tensor, "b n"],
    keys: int,
    right: Bool[Tensor, "b n m"] | None = None,
) -> LimitMask:
    """`right`: where a key's position is greater than the row's, whether it is seen or not."""
    highest = limit.amax(0)
    ends = tuple(int(part.max()) for part in highest.split(GROUP))
    mask = LimitMask(limit, keys, ends)
    if right is None:
        return mask
    return LimitMask(limit, keys, ends, right[:, None] & mask.dense())


def scores_mask(
    mask: LimitMask, rows: slice, end: int, bias: Float[Tensor, "h"] | None, dtype: torch.dtype
) -> Float[Tensor, "b h2 n m"]:
    """What is added to the scores of some rows with the first `end` keys."""
    seen = torch.arange(end, device=mask.limit.device) < mask.limit[:, rows, None]
    added = torch.zeros((), dtype=dtype, device=mask.limit.device)
    if bias is not None and mask.right is not None:
        added = mask.right[:, :, rows, :end] * bias.to(dtype)[:, None, None]
    return added.masked_fill(~seen[:, None], -torch.inf)


def attend(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m e"],
    mask: LimitMask,
    bias: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """Attention on a CPU; every row sees at least one key."""
    return _LimitedAttention.apply(query, key, value, bias, mask)


_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _LimitedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: LimitMask
    ) -> Tensor:
        out = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        out, sums = out.transpose(1, 2), []
        for rows, end in _groups(mask):
            added = scores_mask(mask, rows, end, bias, query.dtype)
            part = (query[:, :, rows], key[:, :, :end], value[:, :, :end])
            out[:, :, rows], log_sum = _kernel(*part, attn_mask=added)
            sums.append(log_sum)
        ctx.save_for_backward(query, key, value, bias, out, *sums)
        ctx.mask = mask
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, bias, out, *sums = ctx.saved_tensors
        mask: LimitMask = ctx.mask
        d_query, d_key, d_value = (_zeros(t) for t in (query, key, value))
        wanted = ctx.needs_input_grad[3] and mask.right is not None
        d_bias = torch.zeros_like(bias) if wanted else None
        for (rows, end), log_sum in zip(_groups(mask), sums, strict=True):
            part = (query[:, :, rows], key[:, :, :end], value[:, :, :end])
            grad, seen = grads[0][:, :, rows], out[:, :, rows]
            added = scores_mask(mask, rows, end, bias, query.dtype)
            made = _kernel_backward(grad, *part, seen, log_sum, 0.0, False, attn_mask=added)
            d_query[:, :, rows] = made[0]
            d_key[:, :, :end] += made[1]
            d_value[:, :, :end] += made[2]
            if d_bias is not None:
                right = mask.right[:, :, rows, :end]  # type: ignore[index]
                d_bias += _bias_gradient(part, right, bias, grad, seen, log_sum)
        return d_query, d_key, d_value, d_bias, None


def _bias_gradient(
    part: tuple[Tensor, Tensor, Tensor],
    right: Tensor,
    bias: Tensor,
    grad: Tensor,
    seen: Tensor,
    log_sum: Tensor,
) -> Float[Tensor, "h"]:
    """sum over rows of m (dO . o - dO . O): a row gives the keys to its right the weight m, and
    would see o among them alone; among all it sees O."""
    only = torch.zeros((), dtype=grad.dtype).masked_fill(~right, -torch.inf)
    apart, log_sum_right = _kernel(*part, attn_mask=only)
    weight = (log_sum_right + bias.to(log_sum.dtype)[:, None] - log_sum).exp()
    weight = weight * right.any(-1)
    along = (grad * (apart - seen)).sum(-1)
    return (weight * along).sum((0, 2)).to(bias.dtype)


def _groups(mask: LimitMask) -> list[tuple[slice, int]]:
    return [(slice(i * GROUP, (i + 1) * GROUP), end) for i, end in enumerate(mask.ends)]


def _zeros(like: Tensor) -> Tensor:
    """Zeros in the memory layout (b, n, h, e), which the projections beside attention have."""
    shape = like.transpose(1, 2).shape
    return torch.zeros(shape, dtype=like.dtype, device=like.device).transpose(1, 2)
