"""Prefix aggregation (eq. PA_matrix): what a query row knows before the first layer.

G^0 = ((PE PE^T) * M^sc) X, a linear attention whose weights depend on positions alone. Three forms
that agree: the literal matrix (reference.py), the chunked sum here, for training, whose cost grows
linearly with length, and the running state here, for decoding.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .shapes import Float, Int, Tensor

CHUNK = 128


def prefix_sums(
    query: Float[Tensor, "b n p"],
    key: Float[Tensor, "b n p"],
    x: Float[Tensor, "b2 n d"],
    *,
    chunk: int = CHUNK,
) -> Float[Tensor, "b2 n d"]:
    """sum over j <= k of <query_k, key_j> x_j for every k, without an n x n tensor.

    Inside a chunk the sum is a small triangular matrix; all chunks before are one p x d state."""
    n = x.shape[1]
    chunk = min(chunk, n)
    q, k, v = (F.pad(t, (0, 0, 0, -n % chunk)).unflatten(1, (-1, chunk)) for t in (query, key, x))
    inside = (q @ k.mT).tril() @ v
    if n <= chunk:
        return inside.squeeze(1)
    # shifted, not cumsum - states: what is added and taken away again leaves its rounding behind,
    # and through it a chunk would see its own later tokens
    before = F.pad((k[:, :-1].mT @ v[:, :-1]).cumsum(1), (0, 0, 0, 0, 1, 0))
    return (inside + q @ before).flatten(1, 2)[:, :n]


def prefix_sums_in_blocks(
    query: Float[Tensor, "b n p"],
    key: Float[Tensor, "b m p"],
    x: Float[Tensor, "b2 m d"],
    limit: Int[Tensor, "b n"],
    *,
    chunk: int = CHUNK,
) -> Float[Tensor, "b2 n d"]:
    """The same, but query k sees the keys j < limit_k only; limits never decrease.

    Queries and keys are merged into one sequence, each query right after the last key it may see.
    There the plain triangular sum is the right one, so any blocks cost only twice single tokens."""
    n, m, batch = limit.shape[1], x.shape[1], max(len(x), len(limit))
    count = torch.arange(m, device=limit.device).expand(len(limit), m).contiguous()
    query_slot = limit + torch.arange(n, device=limit.device)
    key_slot = count + torch.searchsorted(limit, count, right=True)
    merged = (_place(t, s, n + m) for t, s in ((query, query_slot), (key, key_slot), (x, key_slot)))
    sums = prefix_sums(*merged, chunk=chunk)
    return sums.gather(1, query_slot[..., None].expand(batch, n, x.shape[2]))


def _place(rows: Tensor, slot: Tensor, length: int) -> Tensor:
    """rows at their slots of a longer sequence, zeros elsewhere."""
    batch, n, width = max(len(rows), len(slot)), *rows.shape[1:]
    index = slot[..., None].expand(batch, n, width)
    return rows.new_zeros(batch, length, width).scatter(1, index, rows.expand(batch, n, width))


def append_to_state(
    state: Float[Tensor, "b p d"], key: Float[Tensor, "b m p"], x: Float[Tensor, "b m d"]
) -> Float[Tensor, "b p d"]:
    """The running state S = sum_j key_j x_j^T after m more rows; query_k S is the sum above."""
    return torch.baddbmm(state, key.mT, x)


def sinusoid(position: Int[Tensor, "*shape"], width: int) -> Float[Tensor, "*shape width"]:
    """The fixed code of Vaswani et al.: sines and cosines of geometric wavelengths."""
    half = (width + 1) // 2
    exponent = torch.arange(half, device=position.device, dtype=torch.float64) / half
    angle = position[..., None].double() * 10000.0**-exponent
    return torch.cat([angle.sin(), angle.cos()], -1)[..., :width]


class PositionCode(nn.Module):
    """PE: sinusoid, then a two-layer MLP. It depends on the position alone, so it is computed once
    for each position of the text, however many orders the batch holds."""

    def __init__(self, d_model: int, d_pe: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.inner = nn.Linear(d_model, d_pe, bias=False)
        self.outer = nn.Linear(d_pe, d_pe, bias=False)

    def forward(self, length: int) -> Float[Tensor, "length p"]:
        position = torch.arange(length, device=self.inner.weight.device)
        code = sinusoid(position, self.d_model).to(self.inner.weight.dtype)
        return self.outer(F.silu(self.inner(code)))
