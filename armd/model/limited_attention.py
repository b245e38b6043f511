"""Attention of rows that each see the first few keys, on a CPU, some of them on their right.

torch's fast kernel takes such a mask, but reads every key of every row, and has no gradient for the
mask. So rows go in groups, each with the keys that they see (attention_parts.py). Keys on the left
and on the right of a row are two calls of the kernel, joined by their sums; the gradient of a bias
on the right ones follows from the parts.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .attention_parts import GROUP, Part, Parts, cut_in_parts, lengths, parts_of_limits
from .cpu_ops import apply_rope
from .shapes import Float, Int, Tensor


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
    right: RightKeys | None = None
    """Keys to the right of a row; None if they are treated as all others."""
    made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What was worked out for one layer and is the same in all."""

    @property
    def moves(self) -> int:
        """The largest number of moves of a key."""
        if self.right is None:
            return 0
        return 1 if self.right.turns is None else len(self.right.turns)

    def dense(self) -> Tensor:
        """The mask written out, for all heads, (b, 1, n, m)."""
        return (torch.arange(self.keys, device=self.limit.device) < self.limit[..., None])[:, None]

    def part(self, moves: int) -> Tensor:
        """Of what is seen, the keys that are moved so often, (b, 1, n, m)."""
        seen = self.dense()
        return seen if self.right is None else seen & (self.right.times == moves)[:, None]

    def parts(self, copies: int, dtype: torch.dtype) -> Parts:
        """The same in groups of rows."""
        if (key := (copies, dtype)) not in self.made:
            if self.right is None:
                self.made[key] = parts_of_limits(self.limit, copies, dtype)
            else:
                self.made[key] = cut_in_parts(self.limit, self.right.times, copies, dtype)
        return self.made[key]

    def texts(self) -> list["LimitMask"]:
        """The mask of each text of a batch."""
        if "texts" not in self.made:
            self.made["texts"] = [
                LimitMask(
                    self.limit[k : k + 1],
                    self.keys,
                    self.right and self.right._replace(times=self.right.times[k : k + 1]),
                )
                for k in range(len(self.limit))
            ]
        return self.made["texts"]

    def turned(self, rows: Tensor, moves: int, *, back: bool = False) -> Float[Tensor, "b n h e"]:
        """Queries as those of rows so much further to the right: RoPE knows distances alone, so
        that a key moved to the left and a row moved to the right are the same. Or back again."""
        if not moves or self.right is None or self.right.turns is None:
            return rows
        turn = self.right.turns[None, moves - 1, None].to(rows.dtype)
        return apply_rope(rows, turn * turn.new_tensor([1, -1]) if back else turn)


def moved_keys(
    key: Float[Tensor, "b m h e"], value: Float[Tensor, "b m h e"], mask: LimitMask, bias: Any
) -> tuple[Tensor, Tensor, Float[Tensor, "#b h2 n km"]]:
    """Keys and values once for each number of moves, and what is added to the scores of a row, so
    that it sees some of them, with a bias, for a plain attention call. Keys are moved, not rows."""
    moves = range(mask.moves + 1)
    none = key.new_zeros(1)
    shifts = [none if bias is None or not k else bias.to(key.dtype) for k in moves]
    heads = max(map(len, shifts))
    added = [
        torch.where(mask.part(k), shift.expand(heads)[:, None, None], -torch.inf)
        for k, shift in zip(moves, shifts, strict=True)
    ]
    keys = torch.cat([mask.turned(key, k, back=True) for k in moves], 1)
    return keys, torch.cat([value] * len(moves), 1), torch.cat(added, -1)


def attend(
    query: Float[Tensor, "b n h e"],
    key: Float[Tensor, "b m kv e"],
    value: Float[Tensor, "b m kv e"],
    mask: LimitMask,
    bias: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "b n h e"]:
    """Attention on a CPU; every row sees at least one key that is not on its right."""
    if mask.right is None or len(mask.limit) == 1 or query.shape[1] <= GROUP:
        return _LimitedAttention.apply(query, key, value, bias, mask)
    alone = zip(query.split(1), key.split(1), value.split(1), mask.texts(), strict=True)
    return torch.cat([attend(q, k, v, own, bias) for q, k, v, own in alone])


_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _LimitedAttention(torch.autograd.Function):
    """Heads that read the same keys are rows of one head."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: LimitMask
    ) -> Tensor:
        parts = mask.parts(query.shape[2] // key.shape[2], query.dtype)
        queries = [_rows(mask.turned(query, k), parts) for k in range(mask.moves + 1)]
        keys, values = (_keys(t, parts) for t in (key, value))
        wide = torch.promote_types(query.dtype, torch.float32)
        out, sums = torch.empty_like(queries[0]), query.new_empty(queries[0].shape[:3], dtype=wide)
        right = []
        for part in parts.listed:
            rows, seen_keys = part.rows, (_taken(t, part) for t in (keys, values))
            seen, own = _kernel(queries[part.moves][:, :, rows], *seen_keys, attn_mask=part.added)
            if part.moves:  # join the two, each with its share
                own = own + _of_rows(bias, own, parts)
                if part.blind is not None:
                    own.masked_fill_(part.blind, -torch.inf)
                right += [seen, own]
                total = torch.logaddexp(sums[:, :, rows], own)
                out[:, :, rows].lerp_(seen, (own - total).exp()[..., None].to(seen.dtype))
                own = total
            else:
                out[:, :, rows] = seen
            sums[:, :, rows] = own
        ctx.save_for_backward(keys, values, bias, out, sums, *queries, *right)
        ctx.mask, ctx.parts = mask, parts
        return _rows_back(out, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        mask, parts, (keys, values, bias, out, sums, *saved) = (
            ctx.mask,
            ctx.parts,
            ctx.saved_tensors,
        )
        queries, right = saved[: mask.moves + 1], iter(saved[mask.moves + 1 :])
        grad = _rows(grads[0], parts)
        d_queries = [torch.zeros_like(q) for q in queries]
        d_keys, d_values = (torch.zeros_like(t) for t in (keys, values))
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        for part in parts.listed:
            rows, sum_ = part.rows, sums[:, :, part.rows].contiguous()
            given = (queries[part.moves][:, :, rows], _taken(keys, part), _taken(values, part))
            shifted = sum_ - _of_rows(bias, sum_, parts) if part.moves else sum_
            # with the sum over all keys, the kernel's gradient is that of these keys among all
            made = _kernel_backward(
                *(grad[:, :, rows], *given, out[:, :, rows], shifted, 0.0, False),
                attn_mask=part.added,
            )
            d_queries[part.moves][:, :, rows] = made[0]
            for whole, pieces in ((d_keys, made[1]), (d_values, made[2])):
                for at, piece in zip(part.keys, pieces.split(lengths(part.keys), 2), strict=True):
                    whole[:, :, at] += piece
            if part.moves:
                seen, own = next(right), next(right)
                if d_bias is not None:
                    along = grad[:, :, rows] * (seen - out[:, :, rows])
                    d_bias += _bias_gradient(along, own - sum_, parts)
        d_query = _rows_back(d_queries[0], parts)
        for moves, more in enumerate(d_queries[1:], 1):
            d_query = d_query + mask.turned(_rows_back(more, parts), moves, back=True)
        return d_query, _keys_back(d_keys, parts), _keys_back(d_values, parts), d_bias, None


def _bias_gradient(along: Tensor, log_share: Tensor, parts: Parts) -> Float[Tensor, "h"]:
    """sum over rows of m (dO . o - dO . O): a row gives the keys to its right the weight m, and
    sees o among them alone; among all it sees O. `along` is dO (o - O)."""
    weighted = log_share.exp().to(along.dtype) * along.sum(-1)
    return weighted.unflatten(2, (-1, parts.copies)).sum((0, 2)).flatten()


def _of_rows(bias: Tensor | None, like: Float[Tensor, "b kv n"], parts: Parts) -> Tensor:
    """The bias of each row, (kv, n)."""
    if bias is None:
        return like.new_zeros(())
    own = bias.to(like.dtype).view(-1, 1, parts.copies)
    return own.expand(-1, like.shape[2] // parts.copies, -1).flatten(1)


def _taken(keys: Float[Tensor, "b kv m e"], part: Part) -> Float[Tensor, "b kv k e"]:
    found = [keys[:, :, at] for at in part.keys]
    return found[0] if len(found) == 1 else torch.cat(found, 2)


def _rows(query: Float[Tensor, "b n h e"], parts: Parts) -> Float[Tensor, "b kv rows e"]:
    """Queries in the order of the parts, those of heads that read the same keys side by side."""
    if parts.rows is not None:
        query = query.index_select(1, parts.rows)
    by_key = query.unflatten(2, (-1, parts.copies)).transpose(1, 2)
    return by_key.contiguous().flatten(2, 3)


def _rows_back(rows: Float[Tensor, "b kv rows e"], parts: Parts) -> Float[Tensor, "b n h e"]:
    query = rows.unflatten(2, (-1, parts.copies)).transpose(1, 2).contiguous().flatten(2, 3)
    return query if parts.rows is None else query.index_select(1, parts.rows.argsort())


def _keys(key: Float[Tensor, "b m kv e"], parts: Parts) -> Float[Tensor, "b kv m e"]:
    return (key if parts.keys is None else key.index_select(1, parts.keys)).transpose(1, 2)


def _keys_back(keys: Float[Tensor, "b kv m e"], parts: Parts) -> Float[Tensor, "b m kv e"]:
    key = keys.transpose(1, 2)
    return key if parts.keys is None else key.index_select(1, parts.keys.argsort())
