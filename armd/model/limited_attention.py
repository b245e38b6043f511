"""Attention of rows that each see the first few keys, on a CPU, some of them on their right.

torch's fast kernel takes such a mask, but reads every key of every row, and has no gradient for the
mask. So rows go in groups, each with only the keys that one of them sees. Keys on the left and on
the right of a row are two calls of the kernel, joined by their sums; the gradient of a bias on the
right ones follows from the parts.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .cpu_ops import apply_rope
from .shapes import Float, Int, Tensor

GROUP = 128
"""Rows of a group."""


class RightKeys(NamedTuple):
    """Which keys stand to the right of a row, and where the row reads them."""

    times: Int[Tensor, "b n m"]
    """0 for keys that are not on the right; k for those that are moved to the left k times."""
    turns: Float[Tensor, "k half 2"] | None
    """RoPE of the distance of k moves; None: keys are read where they stand."""


@dataclass(frozen=True)
class LimitMask:
    """Row k sees keys 0..limit_k - 1; of those, some may stand to the right of it."""

    limit: Int[Tensor, "b n"]
    keys: int
    ends: tuple[int, ...]
    """The largest limit of each group of rows."""
    right: RightKeys | None = None
    """Keys to the right of a row; None if they are treated as all others."""

    @property
    def moves(self) -> int:
        """The largest number of moves of a key."""
        if self.right is None:
            return 0
        return 1 if self.right.turns is None else len(self.right.turns)

    def seen(self, rows: slice = slice(None), end: int | None = None) -> Tensor:
        """The mask written out, (b, n, m), or that of some rows with the first `end` keys."""
        keys = torch.arange(self.keys if end is None else end, device=self.limit.device)
        return keys < self.limit[:, rows, None]

    def dense(self) -> Tensor:
        """For all heads, (b, 1, n, m)."""
        return self.seen()[:, None]

    def part(self, moves: int, rows: slice = slice(None), end: int | None = None) -> Tensor:
        """Of what is seen, the keys that are moved so often, (b, 1, n, m)."""
        seen = self.seen(rows, end)
        if self.right is not None:
            seen = seen & (self.right.times[:, rows, : seen.shape[-1]] == moves)
        return seen[:, None]

    @cached_property
    def parts(self) -> list[tuple[slice, int, int, Tensor]]:
        """Groups of rows, the number of keys that they see, of moves, and which keys those are:
        the same in every layer."""
        found = []
        for i, end in enumerate(self.ends):
            rows = slice(i * GROUP, (i + 1) * GROUP)
            for moves in range(self.moves + 1):
                kept = self.part(moves, rows, end)
                if not moves or bool(kept.any()):
                    found.append((rows, end, moves, kept))
        return found

    def turned(self, rows: Tensor, moves: int, *, back: bool = False) -> Float[Tensor, "b n h e"]:
        """Queries as those of rows so much further to the right: RoPE knows distances alone, so
        that a key moved to the left and a row moved to the right are the same. Or back again."""
        if not moves or self.right is None or self.right.turns is None:
            return rows
        turn = self.right.turns[None, moves - 1, None].to(rows.dtype)
        return apply_rope(rows, turn * turn.new_tensor([1, -1]) if back else turn)


def limit_mask(limit: Int[Tensor, "b n"], keys: int, right: RightKeys | None = None) -> LimitMask:
    highest = limit.amax(0)
    ends = tuple(int(part.max()) for part in highest.split(GROUP))
    return LimitMask(limit, keys, ends, right)


def scores_mask(
    kept: Tensor, bias: Float[Tensor, "h"] | None, dtype: torch.dtype
) -> Float[Tensor, "b h2 n m"]:
    """What is added to scores, so that some keys are seen, with a bias, and all others are not."""
    added = torch.zeros((), dtype=dtype, device=kept.device)
    if bias is not None:
        added = bias.to(dtype)[:, None, None]
    return torch.where(kept, added, -torch.inf)


def moved_keys(
    key: Float[Tensor, "b m h e"], value: Float[Tensor, "b m h e"], mask: LimitMask, bias: Any
) -> tuple[Tensor, Tensor, Float[Tensor, "#b h2 n km"]]:
    """Keys and values once for each number of moves, and which of them a row sees, for a plain
    attention call. Keys are moved, not rows."""
    moves = range(mask.moves + 1)
    added = [scores_mask(mask.part(k), bias if k else None, key.dtype) for k in moves]
    added = torch.cat([a.expand(-1, max(len(a[0]) for a in added), -1, -1) for a in added], -1)
    keys = torch.cat([mask.turned(key, k, back=True) for k in moves], 1)
    return keys, torch.cat([value] * len(moves), 1), added


def attend(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m e"],
    mask: LimitMask,
    bias: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """Attention on a CPU; every row sees at least one key that is not on its right."""
    return _LimitedAttention.apply(query, key, value, bias, mask)


_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _LimitedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: LimitMask
    ) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        out, log_sums = _empty(query), query.new_empty(query.shape[:3], dtype=wide)
        queries = [_turned(mask, query, moves) for moves in range(mask.moves + 1)]
        right = []
        for rows, end, moves, kept in mask.parts:
            added = scores_mask(kept, bias if moves else None, query.dtype)
            shown = (key[:, :, :end], value[:, :, :end])
            seen, log_sum = _kernel(queries[moves][:, :, rows], *shown, attn_mask=added)
            if moves:  # join the two, each with its share; where all is -inf the kernel's sum is 0
                log_sum = log_sum.masked_fill(~kept.any(-1), -torch.inf)
                right += [seen, log_sum]
                total = torch.logaddexp(log_sums[:, :, rows], log_sum)
                share = (log_sum - total).exp()[..., None].to(seen.dtype)
                out[:, :, rows] = torch.lerp(out[:, :, rows], seen, share)
                log_sum = total
            else:
                out[:, :, rows] = seen
            log_sums[:, :, rows] = log_sum
        ctx.save_for_backward(key, value, bias, out, log_sums, *queries, *right)
        ctx.mask = mask
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        mask, (key, value, bias, out, log_sums, *saved) = ctx.mask, ctx.saved_tensors
        queries, right = saved[: mask.moves + 1], iter(saved[mask.moves + 1 :])
        d_queries, (d_key, d_value) = [_zeros(q) for q in queries], map(_zeros, (key, value))
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        for rows, end, moves, kept in mask.parts:
            added = scores_mask(kept, bias if moves else None, key.dtype)
            grad, joined = grads[0][:, :, rows], out[:, :, rows]
            log_sum = log_sums[:, :, rows].contiguous()
            part = (queries[moves][:, :, rows], key[:, :, :end], value[:, :, :end])
            # with the sum over all keys, the kernel's gradient is that of these keys among all
            made = _kernel_backward(grad, *part, joined, log_sum, 0.0, False, attn_mask=added)
            d_queries[moves][:, :, rows] = made[0]
            d_key[:, :, :end] += made[1]
            d_value[:, :, :end] += made[2]
            if moves:
                seen, own_sum = next(right), next(right)
                if d_bias is not None:
                    d_bias += _bias_gradient(grad, seen, joined, own_sum - log_sum)
        d_query = d_queries[0]
        for moves, more in enumerate(d_queries[1:], 1):
            d_query = d_query + _turned(mask, more, moves, back=True)
        return d_query, d_key, d_value, d_bias, None


def _bias_gradient(
    grad: Tensor, seen: Tensor, joined: Tensor, log_share: Tensor
) -> Float[Tensor, "h"]:
    """sum over rows of m (dO . o - dO . O): a row gives the keys to its right the weight m, and
    sees o among them alone; among all it sees O."""
    along = (grad * (seen - joined)).sum(-1)
    return (log_share.exp().to(along.dtype) * along).sum((0, 2))


def _turned(mask: LimitMask, query: Tensor, moves: int, *, back: bool = False) -> Tensor:
    return mask.turned(query.transpose(1, 2), moves, back=back).transpose(1, 2)


def _empty(like: Tensor) -> Tensor:
    """In the memory layout (b, n, h, e), which the projections beside attention have."""
    made = torch.empty_like(like.transpose(1, 2), memory_format=torch.contiguous_format)
    return made.transpose(1, 2)


def _zeros(like: Tensor) -> Tensor:
    return _empty(like).zero_()
