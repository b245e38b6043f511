"""Attention in groups of rows, and the gradient of its bias, against plain attention."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from armd.model import limited_attention
from armd.model.limited_attention import RightKeys, attend, limit_mask, moved_keys


@pytest.fixture(params=[3, 128])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_attention, "GROUP", request.param)


def inputs(
    rows: int, keys: int, moves: int
) -> tuple[list[torch.Tensor], limited_attention.LimitMask]:
    """Without moves, keys to the right have a bias alone."""
    generator = torch.Generator().manual_seed(rows)
    shapes = ((2, 3, rows, 4), (2, 3, keys, 4), (2, 3, keys, 4), (3,))
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    limit = torch.randint(1, keys + 1, (2, rows), generator=generator).sort(-1).values
    times = torch.randint(0, max(moves, 1) + 1, (2, rows, keys), generator=generator)
    times[:, 0] = 0  # a row that has no key to its right
    times[..., 0] = 0  # every row sees a key that is not
    angle = torch.randn(moves, 2, generator=generator, dtype=torch.float64)
    turns = torch.stack([angle.cos(), angle.sin()], -1) if moves else None
    return [t.requires_grad_() for t in made], limit_mask(limit, keys, RightKeys(times, turns))


@pytest.mark.parametrize("moves", [0, 1, 2])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (7, 7), (10, 13)])
def test_groups_of_rows_equal_plain_attention(
    rows: int, keys: int, moves: int, group: None
) -> None:
    """Which moves keys, where ours turns queries."""
    (q, k, v, bias), mask = inputs(rows, keys, moves)
    with sdpa_kernel(SDPBackend.MATH):
        moved = moved_keys(k.transpose(1, 2), v.transpose(1, 2), mask, bias)
        keys_values = (t.transpose(1, 2) for t in moved[:2])
        plain = F.scaled_dot_product_attention(q, *keys_values, attn_mask=moved[2])
    ours = attend(q, k, v, mask, bias)
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(plain)
    leaves = (q, k, v, bias)
    theirs = torch.autograd.grad((plain * weight).sum(), leaves)
    for mine, other in zip(torch.autograd.grad((ours * weight).sum(), leaves), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("moves", [0, 2])
def test_gradients_are_those_of_differences(moves: int, group: None) -> None:
    leaves, mask = inputs(5, 6, moves)
    assert torch.autograd.gradcheck(lambda *t: attend(*t[:3], mask, t[3]), leaves)
