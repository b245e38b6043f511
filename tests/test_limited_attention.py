"""Attention in groups of rows, and the gradient of its bias, against plain attention."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from armd.model import attention_parts, limited_attention
from armd.model import order as orders
from armd.model.attention_inputs import block_limits, context_position
from armd.model.attention_parts import lengths
from armd.model.configuration_armd import ArmdConfig
from armd.model.layers import right_keys
from armd.model.limited_attention import LimitMask, RightKeys, attend, moved_keys


@pytest.fixture(params=[3, 128])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which a test has several groups and runs of keys, or one."""
    for module in (limited_attention, attention_parts):
        monkeypatch.setattr(module, "GROUP", request.param)
    for name, value in (("GAP", request.param // 2), ("CALL", request.param // 3)):
        monkeypatch.setattr(attention_parts, name, value)


def inputs(rows: int, keys: int, moves: int, kv: int = 4) -> tuple[list[torch.Tensor], LimitMask]:
    """Without moves, keys to the right have a bias alone."""
    generator = torch.Generator().manual_seed(rows)
    shapes = ((2, rows, 4, 4), (2, keys, kv, 4), (2, keys, kv, 4), (4,))
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    limit = torch.randint(1, keys + 1, (2, rows), generator=generator).sort(-1).values
    times = torch.randint(0, max(moves, 1) + 1, (2, rows, keys), generator=generator)
    times[:, 0] = 0  # a row that has no key to its right
    times[..., 0] = 0  # every row sees a key that is not
    angle = torch.randn(moves, 2, generator=generator, dtype=torch.float64)
    turns = torch.stack([angle.cos(), angle.sin()], -1) if moves else None
    return [t.requires_grad_() for t in made], LimitMask(limit, keys, RightKeys(times, turns))


def assert_plain(leaves: list[torch.Tensor], mask: LimitMask) -> None:
    """Values and gradients are those of plain attention, which moves keys, where ours turns
    queries."""
    q, k, v, bias = leaves
    copies = q.shape[2] // k.shape[2]
    with sdpa_kernel(SDPBackend.MATH):
        moved_k, moved_v, added = moved_keys(k, v, mask, bias)
        k_v = (t.repeat_interleave(copies, 2).transpose(1, 2) for t in (moved_k, moved_v))
        plain = F.scaled_dot_product_attention(q.transpose(1, 2), *k_v, attn_mask=added)
    plain, ours = plain.transpose(1, 2), attend(q, k, v, mask, bias)
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(plain)
    theirs = torch.autograd.grad((plain * weight).sum(), leaves)
    for mine, other in zip(torch.autograd.grad((ours * weight).sum(), leaves), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kv", [2, 4])
@pytest.mark.parametrize("moves", [0, 1, 2])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (7, 7), (10, 13)])
def test_groups_of_rows_equal_plain_attention(
    rows: int, keys: int, moves: int, kv: int, group: None
) -> None:
    assert_plain(*inputs(rows, keys, moves, kv))


@pytest.mark.parametrize("streams", [2, 3, 5])
def test_streams_take_each_pair_about_once(
    streams: int, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values as above, and hardly more pairs are scored than are seen: fewer than there are, where
    two calls for all of them would score twice as many."""
    n, config = 60, ArmdConfig(d_model=16, n_heads=4, query="neighbor", right_offset=20)
    order = orders.strided(n, streams).rows(1)
    position, (_, reach) = context_position(order), block_limits(order)
    mask = LimitMask(reach, n, right_keys(position, position, config))
    leaves = inputs(n, n, 0, 2)[0]
    assert_plain([*(t[:1] for t in leaves[:3]), leaves[3]], mask)
    if n > attention_parts.GROUP:
        parts = mask.parts(1, torch.float64)
        pairs = [(p.rows.stop - p.rows.start) * sum(lengths(p.keys)) for p in parts.listed]
        assert int(reach.sum()) <= sum(pairs) < 0.75 * n * n
        assert parts.rows is not None and parts.rows.sort().values.equal(torch.arange(n))


@pytest.mark.parametrize("moves", [0, 2])
def test_gradients_are_those_of_differences(moves: int, group: None) -> None:
    leaves, mask = inputs(5, 6, moves)
    assert torch.autograd.gradcheck(lambda *t: attend(*t[:3], mask, t[3]), leaves)


def test_a_random_order_is_cut_without_looking_at_each_row(monkeypatch) -> None:
    """By position nearly every row of a random order is a group of its own, which costs more than
    it saves: it is not tried."""
    looked, runs = [], attention_parts._runs
    monkeypatch.setattr(attention_parts, "_runs", lambda seen: looked.append(1) or runs(seen))
    n, config = 1024, ArmdConfig(query="neighbor", right_bias=True)
    at = torch.randperm(n, generator=torch.Generator().manual_seed(1))[None]
    limit = torch.arange(1, n + 1)[None]
    LimitMask(limit, n, right_keys(at, at, config)).parts(1, torch.float32)
    assert len(looked) <= 2 * n // attention_parts.GROUP
