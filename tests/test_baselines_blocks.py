"""Block diffusion: between autoregressive and masked diffusion, and equal to each at its end."""

import itertools

import pytest
import torch
from small_diffusion import (
    TEXTS,
    N,
    T,
    V,
    assert_follows,
    assert_mean,
    drawn_bounds,
    made,
    mean_exp,
    over_orders,
)
from torch import Tensor

from armd.baselines.bd3lm import Bd3lm
from armd.baselines.masked_diffusion import Noise
from armd.baselines.mdlm import Mdlm
from armd.baselines.radd import Radd


def every(texts: Tensor) -> Tensor:
    return torch.ones_like(texts, dtype=torch.bool)


def log_probs(model: Bd3lm, texts: Tensor, masked: Tensor) -> Tensor:
    """log p of each token from the training pass with these tokens masked."""
    noise = Noise(masked.expand(texts.shape), torch.ones(texts.shape, dtype=torch.float64))
    rows = model.denoise(texts, every(texts), noise)
    return (rows @ model.head_matrix().mT).log_softmax(-1).gather(-1, texts[..., None])[..., 0]


def log_p_given_steps(model: Bd3lm, texts: Tensor, when: Tensor) -> Tensor:
    """log p if token i appears in step when[i] of its block."""
    total = torch.zeros(len(texts), dtype=torch.float64)
    for now in when.unique():
        total += log_probs(model, texts, when >= now)[:, when == now].sum(1)
    return total


def over_steps(model: Bd3lm, texts: Tensor, steps: int) -> Tensor:
    ways = itertools.product(range(steps), repeat=texts.shape[1])
    return torch.stack([log_p_given_steps(model, texts, torch.tensor(w)) for w in ways])


def over_block_orders(model: Bd3lm, texts: Tensor) -> Tensor:
    """Blocks of two and of one: both orders of the first."""
    ways = [torch.tensor(way) for way in ([0, 1, 0], [1, 0, 0])]
    return torch.stack([log_p_given_steps(model, texts, way) for way in ways])


def test_bound_is_a_bound() -> None:
    model = made(Bd3lm, block_size=2)
    log_p = over_block_orders(model, TEXTS)
    bound, exact = -log_p.mean(0), -mean_exp(log_p)
    assert torch.allclose((-exact).exp().sum(), torch.ones((), dtype=torch.float64))
    assert (bound >= exact).all() and (bound > exact + 1e-3).any()
    assert_mean(drawn_bounds(model, TEXTS), bound)


def test_blocks_of_one_are_autoregressive_and_exact() -> None:
    model = made(Bd3lm, block_size=1)
    exact = log_probs(model, TEXTS, every(TEXTS))
    draws = drawn_bounds(model, TEXTS, rows=2)
    assert torch.allclose(draws, -exact.sum(1, keepdim=True).expand(-1, 2))
    assert torch.allclose(exact.sum(1).exp().sum(), torch.ones((), dtype=torch.float64))
    later = TEXTS.clone()
    later[:, 2] = (later[:, 2] + 1) % V
    assert torch.allclose(log_probs(model, later, every(TEXTS))[:, :2], exact[:, :2])


@pytest.mark.parametrize("kind", [Mdlm, Radd])
def test_one_block_is_masked_diffusion(kind: type[Radd]) -> None:
    blocks, whole = made(Bd3lm, block_size=N), made(kind)
    whole.load_state_dict(blocks.state_dict())
    expected = -over_orders(whole, TEXTS).mean(0)
    assert_mean(drawn_bounds(blocks, TEXTS), expected)
    assert_mean(drawn_bounds(whole, TEXTS), expected)
    if kind is Radd:  # which draws its noise in the same way too
        assert torch.allclose(
            drawn_bounds(blocks, TEXTS, rows=3), drawn_bounds(whole, TEXTS, rows=3)
        )


def test_sampler_follows_its_process() -> None:
    model = made(Bd3lm, block_size=2)
    log_p = mean_exp(over_steps(model, TEXTS, T // 2))
    generator = torch.Generator().manual_seed(2)
    drawn = model.sample(batch=6000, length=N, steps=T, generator=generator)
    assert drawn.calls <= T
    assert_follows(drawn.tokens, log_p)


def test_cached_blocks_equal_the_full_pass() -> None:
    model = made(Bd3lm, block_size=3)
    texts = torch.randint(V, (4, 11), generator=torch.Generator().manual_seed(7))
    masked = torch.rand(4, 11, generator=torch.Generator().manual_seed(8)) < 0.5
    full = model.denoise(texts, every(texts), Noise(masked, masked.double()))
    noisy, kept = texts.masked_fill(masked, model.mask_id), model.nothing_kept(4)
    for start in range(0, 11, 3):
        text = torch.cat([texts[:, :start], noisy[:, start : start + 3]], 1)
        for first in (True, False):
            rows = model.step(text, start, first, kept)
            assert torch.allclose(rows, full[:, start : start + 3], atol=1e-9)


def test_skipped_steps_change_nothing() -> None:
    model, options = made(Bd3lm, block_size=2), {"batch": 2, "length": 7, "steps": 24}
    with_skip = model.sample(**options, generator=torch.Generator().manual_seed(3))
    without = model.sample(**options, generator=torch.Generator().manual_seed(3), skip=False)
    assert torch.equal(with_skip.tokens, without.tokens)
    assert with_skip.calls <= 7 + 3 and without.calls == 24


def test_pads_are_never_noised_and_never_matter() -> None:
    model = made(Bd3lm, block_size=2)
    tokens, scored = TEXTS[5:9].repeat(1, 3), torch.ones(4, 3 * N, dtype=torch.bool)
    scored[:2, 4:] = False
    scored[2, 3:] = False
    scored[3] = False
    other = tokens.where(scored, (tokens + 1) % V)
    first, second = (
        model.nll(t, scored, torch.Generator().manual_seed(5)) for t in (tokens, other)
    )
    assert torch.equal(first, second) and first[3] == 0 and (first[:3] > 0).all()
    masked = scored & (torch.rand(scored.shape, generator=torch.Generator().manual_seed(9)) < 0.5)
    padded = model.denoise(tokens[2:3], scored[2:3], Noise(masked[2:3], masked[2:3].double()))
    short = model.denoise(
        tokens[2:3, :3], scored[2:3, :3], Noise(masked[2:3, :3], masked[2:3, :3].double())
    )
    assert torch.allclose(padded[:, :3], short)
