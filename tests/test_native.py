"""What the C files do is what torch does, and a row's bits are its own: not the batch's."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import armd
from armd import fast, native, sampling
from armd.layers import Entry, Layer
from armd.sampling import Sampling, draw

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


def layer_of(d_head: int, generator: torch.Generator, weights: str = "fp32") -> fast.FastLayer:
    config = armd.ArmdConfig(
        vocab_size=7, d_model=2 * d_head, n_layers=1, n_heads=2, max_length=32, dropout=0.0
    )
    model = armd.ArmdLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    layer = fast.pack(model, weights).layers[0]
    assert isinstance(layer, fast.FastLayer)
    return layer


@torch.no_grad()
def both(
    layer: fast.FastLayer, rows: torch.Tensor, turn: torch.Tensor, store: torch.Tensor, entry: Entry
) -> None:
    """The same pass in C and in torch: the same rows go up, the same keys stay."""
    for skip in (0, entry.own):
        if skip == rows.shape[1]:
            continue
        ours, theirs = store.clone(), store.clone()
        up = layer.decode(rows, turn, ours[0], ours[1], entry, skip=skip)
        expected = Layer.decode(layer, rows, turn, theirs[0], theirs[1], entry, skip=skip)
        limit = 3e-6 * float(expected.abs().max())
        torch.testing.assert_close(up, expected, rtol=1e-5, atol=limit)
        torch.testing.assert_close(ours[..., :-1, :, :], theirs[..., :-1, :, :])


@settings(max_examples=60, deadline=None)
@given(
    d_head=st.sampled_from([8, 16, 24, 64, 72]),
    batch=st.integers(1, 3),
    counts=st.tuples(st.integers(1, 9), st.integers(0, 9)),
    start=st.integers(0, 100),
    unlike=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_layer_in_c_is_the_layer(
    d_head: int, batch: int, counts: tuple[int, int], start: int, unlike: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    own, others = counts
    slots = start + own + 2
    layer = layer_of(d_head, g)
    store = torch.randn(2, batch, slots, 2, d_head, generator=g)
    rows = torch.randn(batch, own + others, 2 * d_head, generator=g)
    angle = torch.rand(batch, own + others, d_head // 2, generator=g) * 6
    turn = torch.stack([angle.cos(), angle.sin()], -1)
    entry = Entry(own, start, start + own)
    if unlike:
        slot = torch.stack([torch.randperm(slots - 1, generator=g)[:own] for _ in range(batch)])
        limit = torch.randint(1, slots, (batch, own + others), generator=g)
        entry = dataclasses.replace(entry, slot=slot, limit=limit)
    both(layer, rows, turn, store, entry)


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_row_has_the_same_bits_alone_and_among_others(weights: str) -> None:
    g = torch.Generator().manual_seed(1)
    layer = layer_of(64, g, weights)
    batch, slots = 23, 80
    store = torch.randn(2, batch, slots, 2, 64, generator=g)
    rows = torch.randn(batch, 1, 128, generator=g)
    turn = torch.nn.functional.normalize(torch.randn(batch, 1, 32, 2, generator=g), dim=-1)
    limit = torch.randint(1, slots, (batch, 1), generator=g)
    slot = limit - 1
    entry = Entry(1, 0, slots, slot=slot, limit=limit)
    together = layer.decode(rows, turn, *store.clone(), entry)
    for i in range(batch):
        one, length = slice(i, i + 1), int(limit[i])
        alone = Entry(1, length - 1, length)
        out = layer.decode(rows[one], turn[one], *store[:, one].clone(), alone)
        assert torch.equal(out[0], together[i])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 5000), st.floats(0.2, 3), st.booleans(), st.integers(0, 99)
)
def test_a_token_drawn_in_c_is_the_one_drawn_in_torch(
    rows: int, vocabulary: int, temperature: float, forced: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 2, vocabulary, generator=g) * 5
    logits[torch.rand(logits.shape, generator=g) < 0.3] = -torch.inf
    logits[..., 0] = 0.0
    uniform = torch.rand(rows, 2, dtype=torch.float64, generator=g)
    given_ids = torch.randint(-1, vocabulary, (rows, 2), generator=g) if forced else None
    chosen = Sampling(temperature=temperature)
    assert sampling._natively(logits, chosen)
    token, logp = draw(logits, uniform, chosen, None, given_ids)
    expected, expected_logp = draw(logits.double(), uniform, chosen, None, given_ids)
    assert torch.equal(token, expected)
    torch.testing.assert_close(logp, expected_logp, rtol=1e-13, atol=1e-13)
