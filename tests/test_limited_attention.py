"""Attention in groups of rows, and the gradient of its bias, against plain attention."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from armd.model import limited_attention
from armd.model.limited_attention import attend, limit_mask, scores_mask


@pytest.fixture(params=[3, 128])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_attention, "GROUP", request.param)


def inputs(rows: int, keys: int) -> tuple[list[torch.Tensor], limited_attention.LimitMask]:
    generator = torch.Generator().manual_seed(rows)
    shapes = ((2, 3, rows, 4), (2, 3, keys, 4), (2, 3, keys, 4), (3,))
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    limit = torch.randint(1, keys + 1, (2, rows), generator=generator).sort(-1).values
    right = torch.rand(2, rows, keys, generator=generator) < 0.4
    right[:, 0] = False  # a row that has no key to its right
    return [t.requires_grad_() for t in made], limit_mask(limit, keys, right)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (7, 7), (10, 13)])
def test_groups_of_rows_equal_plain_attention(rows: int, keys: int, group: None) -> None:
    (q, k, v, bias), mask = inputs(rows, keys)
    with sdpa_kernel(SDPBackend.MATH):
        added = scores_mask(mask, slice(None), keys, bias, q.dtype)
        plain = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    ours = attend(q, k, v, mask, bias)
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(plain)
    leaves = (q, k, v, bias)
    theirs = torch.autograd.grad((plain * weight).sum(), leaves)
    for mine, other in zip(torch.autograd.grad((ours * weight).sum(), leaves), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_differences(group: None) -> None:
    leaves, mask = inputs(5, 6)
    assert torch.autograd.gradcheck(lambda *t: attend(*t[:3], mask, t[3]), leaves)
