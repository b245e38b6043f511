"""Small diffusion models, and what the laws about them are checked with: all texts of three tokens,
and log p of each by enumeration."""

import itertools
import math

import torch
from torch import Tensor

from armd.baselines.configuration import BaselineConfig
from armd.baselines.d3pm import D3pm
from armd.baselines.denoiser import Trunk

V, N, T = 3, 3, 4
TEXTS = torch.tensor(list(itertools.product(range(V), repeat=N)))


def made(kind: type[Trunk], seed: int = 0, *, blind: bool = False, **changes) -> Trunk:
    """A small model whose weights are large enough to have opinions; a blind one sees no context,
    so that its tokens are independent and no order is better than another."""
    options = {"vocab_size": V, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_length": 16}
    options |= {"dropout": 0.0, "diffusion_steps": T, **changes}
    model = kind(BaselineConfig(**options)).eval().double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.2 if "embedding" in name else 0.5
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * spread
            weight.copy_(1 + noise if "norm" in name else noise)
            if blind and (".out." in name or "time_code" in name):
                weight.zero_()
    return model.requires_grad_(False)


def log_probs(model: Trunk, noisy: Tensor, time: float) -> Tensor:
    """(rows, n, vocabulary) of a text with masks."""
    times = torch.full((len(noisy),), time, dtype=torch.float64)
    return (model.hidden(noisy, time=times) @ model.head_matrix().mT).log_softmax(-1)


def log_p_given_steps(
    model: Trunk, texts: Tensor, when: tuple[int, ...], steps: int, known: dict | None = None
) -> Tensor:
    """log p of each text if token i appears in step when[i] of `steps`. `known` keeps what the
    network said: many ways lead through the same masks."""
    step, total = torch.tensor(when), torch.zeros(len(texts), dtype=torch.float64)
    known = {} if known is None else known
    for now in sorted(set(when)):
        masked = step >= now
        key = (now, *masked.tolist())
        if key not in known:
            noisy = texts.masked_fill(masked, model.mask_id)
            every = log_probs(model, noisy, 1 - now / steps)
            known[key] = every.gather(-1, texts[..., None])[..., 0]
        total += known[key][:, step == now].sum(1)
    return total


def over_steps(model: Trunk, texts: Tensor, steps: int) -> Tensor:
    """log p of each text given when its tokens appear, for every possibility: all are as likely."""
    known, ways = {}, itertools.product(range(steps), repeat=texts.shape[1])
    return torch.stack([log_p_given_steps(model, texts, way, steps, known) for way in ways])


def over_orders(model: Trunk, texts: Tensor) -> Tensor:
    """The same in continuous time, where no two tokens appear at once: every order."""
    n = texts.shape[1]
    return torch.stack(
        [log_p_given_steps(model, texts, when, n) for when in itertools.permutations(range(n))]
    )


def mean_exp(log_p: Tensor) -> Tensor:
    return log_p.logsumexp(0) - math.log(len(log_p))


def d3pm_bound(model: Trunk, texts: Tensor) -> Tensor:
    """The ELBO written out: every step, every mask."""
    total = torch.zeros(len(texts), dtype=torch.float64)
    for t, mask in itertools.product(range(1, T + 1), itertools.product((False, True), repeat=N)):
        masked = torch.tensor(mask)
        chance = math.prod(t / T if m else 1 - t / T for m in mask)
        noisy = texts.masked_fill(masked, model.mask_id)
        each = log_probs(model, noisy, t / T).gather(-1, texts[..., None])[..., 0]
        total -= chance / t * (each * masked).sum(1)
    return total


def bound_and_exact(model: Trunk, texts: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(model, D3pm):
        return d3pm_bound(model, texts), -mean_exp(over_steps(model, texts, T))
    log_p = over_orders(model, texts)
    return -log_p.mean(0), -mean_exp(log_p)


def drawn_bounds(model: Trunk, texts: Tensor, rows: int = 600, seed: int = 1) -> Tensor:
    """(texts, rows) draws of the model's own bound."""
    generator = torch.Generator().manual_seed(seed)
    tokens = texts.repeat_interleave(rows, 0)
    return model.nll(tokens, torch.ones_like(tokens, dtype=torch.bool), generator).view(-1, rows)


def assert_mean(draws: Tensor, expected: Tensor, sigmas: float = 5.0) -> None:
    error = draws.std(1) / draws.shape[1] ** 0.5
    assert ((draws.mean(1) - expected).abs() <= sigmas * error + 1e-9).all()


def assert_follows(tokens: Tensor, log_p: Tensor) -> None:
    """Chi-square of draws against the probabilities of all texts."""
    index = (tokens * V ** torch.arange(N - 1, -1, -1)).sum(1)
    seen, expected = torch.bincount(index, minlength=len(TEXTS)), log_p.exp() * len(tokens)
    enough = expected > 5
    chi = ((seen - expected)[enough] ** 2 / expected[enough]).sum()
    freedom = int(enough.sum())
    assert freedom > 8 and chi < freedom + 5 * (2 * freedom) ** 0.5
