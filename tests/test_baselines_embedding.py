"""Diffusion on embeddings: the bound against quadrature, and against the exact probability of the
process that writes, which for one dimension a token is a chain over a grid."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from small_diffusion import V, assert_mean, drawn_bounds, made
from torch import Tensor

from armd.baselines.diffusion_lm import DiffusionLm
from armd.baselines.embedding_diffusion import EmbeddingDiffusion, parts_of
from armd.baselines.plaid import Plaid

BOTH = [Plaid, DiffusionLm]
STEPS = 4
PAIRS = torch.tensor(list(itertools.product(range(V), repeat=2)))


def small(kind: type[EmbeddingDiffusion], **changes) -> EmbeddingDiffusion:
    """One dimension a token, and no fast waves in the code of time."""
    model = made(kind, **{"d_embedding": 1, "diffusion_steps": STEPS, **changes})
    model.time_code.inner.weight.view(16, 2, 8)[:, :, :4] = 0
    if isinstance(model, Plaid):
        model.ends.copy_(torch.tensor([-3.0, 6.0]))
        model.head.weight.mul_(0.2)  # opinions, but no certainty
    elif model.config.d_embedding == 1:
        model.embedding.weight.copy_(torch.tensor([[-1.0], [0.5], [1.5]]))
    return model


def true_of_one(bias: Tensor, **changes) -> Plaid:
    """PLAID whose network says nothing but how frequent tokens are: of independent tokens its
    probabilities are then the exact posterior."""
    model = small(Plaid, **changes)
    model.head.weight.zero_()
    model.head.bias.copy_(bias.log())
    model.ends.copy_(torch.tensor([-3.0, 12.0]))  # so that the last z is pure noise
    return model


def nodes(n: int) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite: points (count^n, n) and weights of the normal distribution."""
    x, w = np.polynomial.hermite_e.hermegauss(40 if n == 1 else 18)
    points = torch.tensor(list(itertools.product(x, repeat=n)))
    weights = torch.tensor(list(itertools.product(w, repeat=n))).prod(1)
    return points, weights / weights.sum()


def noisy(
    model: EmbeddingDiffusion, text: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """e, z at each gamma and node, its gamma, and the weights of the nodes."""
    noise, weight = nodes(len(text))
    gammas = gamma.repeat_interleave(len(noise))
    alpha, sigma = (x[:, None, None] for x in parts_of(gammas))
    clean = model.points()[text]
    return clean, alpha * clean + sigma * noise.repeat(len(gamma), 1)[..., None], gammas, weight


def squares(model: EmbeddingDiffusion, text: Tensor, gamma: Tensor) -> Tensor:
    """The mean of |e - guess|^2 at each gamma, summed over tokens."""
    clean, z, gammas, weight = noisy(model, text, gamma)
    found = (clean - model.guess(z, gammas)).square().sum((1, 2))
    return found.view(len(gamma), -1) @ weight


def bound_by_quadrature(model: EmbeddingDiffusion, text: Tensor, points: int = 100) -> float:
    """Three terms: the end, the way, and the tokens of z_0."""
    if isinstance(model, DiffusionLm):
        gamma = model.gamma(torch.linspace(0, 1, STEPS + 1, dtype=torch.float64))
        weight = -(-gamma).exp().diff() / 2
        way = weight @ squares(model, text, gamma[1:])
    else:  # the integral over gamma, whatever its course in time
        edge = torch.linspace(float(model.ends[0]), float(model.ends[1]), points + 1).double()
        gamma = (edge[1:] + edge[:-1]) / 2
        way = (edge.diff() * (-gamma).exp() / 2) @ squares(model, text, gamma)
        gamma = edge
    _, z, gammas, weight = noisy(model, text, gamma[:1])
    log_p = model.last_logits(z, gammas).log_softmax(-1)[:, range(len(text)), text].sum(1)
    return float(model.prior_kl(text).sum() + way - log_p @ weight)


def exact(model: EmbeddingDiffusion, n: int, moves: int, points: int) -> Tensor:
    """-log p of all texts of n tokens by the sampler's chain of `moves` steps, on a grid of z."""
    line = torch.linspace(-5.5, 5.5, points, dtype=torch.float64)
    states = torch.tensor(list(itertools.product(line.tolist(), repeat=n)), dtype=torch.float64)
    p = (-states.square().sum(1) / 2).exp()
    p = p / p.sum()
    grid = model.gamma(torch.linspace(1, 0, moves + 1, dtype=torch.float64))
    for now, then in itertools.pairwise(grid):
        guess = model.guess(states[..., None], now.expand(len(states)))[..., 0]
        (a, s), (b, r) = parts_of(now), parts_of(then)
        # q(z_then | z_now, e): the product of z_then given e and of z_now given z_then
        carry = a / b
        extra = s**2 - carry**2 * r**2
        variance = 1 / (1 / r**2 + carry**2 / extra)
        mean = variance * (b * guess / r**2 + carry * states / extra)
        step = (-((line - mean[..., None]) ** 2) / (2 * variance)).exp()
        step = step / step.sum(-1, keepdim=True)
        if n == 1:
            p = p @ step[:, 0]
        else:
            p = torch.einsum("s,si,sj->ij", p, step[:, 0], step[:, 1]).flatten()
    said = model.last_logits(states[..., None], grid[-1].expand(len(states))).softmax(-1)
    if n == 1:
        return -(p @ said[:, 0]).log()
    return -torch.einsum("s,sv,sw->vw", p, said[:, 0], said[:, 1]).flatten().log()


@cache
def exact_pairs(kind: type[EmbeddingDiffusion]) -> Tensor:
    return exact(small(kind), 2, STEPS, 100 if kind is DiffusionLm else 60)


def test_plaids_bound_of_the_exact_posterior_is_the_entropy() -> None:
    truth = torch.tensor([0.7, 0.3], dtype=torch.float64)
    model = true_of_one(truth, vocab_size=2)
    model.embedding.weight.copy_(torch.tensor([[-1.0], [1.0]]))
    each = [bound_by_quadrature(model, torch.tensor([w]), 300) for w in range(2)]
    assert each == pytest.approx((-truth.log()).tolist(), abs=1e-3)


def test_plaids_draws_are_exact_for_independent_tokens_in_any_space() -> None:
    truth = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    model = true_of_one(truth, d_embedding=3)
    texts = torch.tensor([[0, 0, 1], [2, 1, 0]])
    draws = drawn_bounds(model, texts, rows=4000)
    assert_mean(draws, -truth.log()[texts].sum(1))


@pytest.mark.parametrize("kind", BOTH)
def test_draws_are_of_the_bound(kind: type[EmbeddingDiffusion]) -> None:
    model = small(kind)
    texts = PAIRS[[1, 6]]
    expected = torch.tensor([bound_by_quadrature(model, text) for text in texts])
    assert_mean(drawn_bounds(model, texts, rows=3000), expected)


def test_diffusion_lms_bound_is_a_bound() -> None:
    model = small(DiffusionLm)
    found = exact_pairs(DiffusionLm)
    bound = torch.tensor([bound_by_quadrature(model, text) for text in PAIRS])
    assert torch.allclose((-found).exp().sum(), torch.ones((), dtype=torch.float64), atol=1e-6)
    assert (bound >= found - 1e-6).all() and (bound > found + 1e-3).any()


def test_plaids_bound_is_a_bound() -> None:
    """Its process has no steps; one of many comes close by 1 / steps, which is taken out."""
    model = small(Plaid)
    model.ends.copy_(torch.tensor([-2.0, 4.0]))
    few, many = (exact(model, 1, moves, 300) for moves in (75, 150))
    found = 2 * many - few
    bound = torch.tensor([bound_by_quadrature(model, torch.tensor([w])) for w in range(V)])
    assert torch.allclose((-many).exp().sum(), torch.ones((), dtype=torch.float64), atol=1e-6)
    assert (bound >= found + 5e-3).all()


@pytest.mark.parametrize("kind", BOTH)
def test_the_sampler_follows_its_process(kind: type[EmbeddingDiffusion]) -> None:
    model, count = small(kind), 6000
    steps = STEPS + model.reads_last
    expected = (-exact_pairs(kind)).exp() * count
    generator = torch.Generator().manual_seed(2)
    drawn = model.sample(batch=count, length=2, steps=steps, generator=generator)
    assert drawn.calls == steps
    seen = torch.bincount(drawn.tokens @ torch.tensor([V, 1]), minlength=V * V)
    enough = expected > 5
    chi = ((seen - expected)[enough] ** 2 / expected[enough]).sum()
    freedom = int(enough.sum())
    assert freedom > 5 and chi < freedom + 5 * (2 * freedom) ** 0.5


def test_temperature_sharpens() -> None:
    truth = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    model = true_of_one(truth, d_embedding=3)
    model.embedding.weight.copy_(torch.eye(3))
    shares = []
    for temperature in (1.0, 0.7):
        source = torch.Generator().manual_seed(1)
        drawn = model.sample(
            batch=1500, length=1, steps=40, temperature=temperature, generator=source
        )
        shares.append(torch.bincount(drawn.tokens[:, 0], minlength=3) / 1500)
    assert torch.allclose(shares[0].double(), truth, atol=0.06)
    assert shares[1][0] > shares[0][0] + 0.05 and shares[1][2] < shares[0][2] - 0.02


def test_the_course_of_gamma_rises_between_its_ends_and_learns_by_the_square() -> None:
    model = small(Plaid).requires_grad_(True)
    time = torch.linspace(0, 1, 301, dtype=torch.float64)
    gamma = model.gamma(time).detach()
    assert (gamma.diff() > 0).all()
    assert gamma[[0, -1]].tolist() == pytest.approx(model.ends.tolist())
    tokens = torch.tensor([[1, 0, 2, 1]])
    scored = torch.ones_like(tokens, dtype=torch.bool)

    def mean_integral() -> Tensor:
        """Nats a token of the integral's draw; this seed's one row is not at time 0."""
        drawn = model.nll(tokens, scored, torch.Generator().manual_seed(3)).sum()
        return (drawn - model.prior_kl(tokens[0]).sum()) / tokens.numel()

    found = torch.autograd.grad(mean_integral(), model.pace)[0]
    direction = torch.randn(len(found), generator=torch.Generator().manual_seed(1)).double()
    squares = []
    for side in (1, -1):
        model.pace.data += side * 1e-5 * direction
        squares.append(float(mean_integral().detach()) ** 2)
        model.pace.data -= side * 1e-5 * direction
    assert (squares[0] - squares[1]) / 2e-5 == pytest.approx(float(found @ direction), rel=1e-4)


@pytest.mark.parametrize("kind", BOTH)
def test_gradients_are_finite_and_pads_never_matter(kind: type[EmbeddingDiffusion]) -> None:
    model = small(kind, d_embedding=3).requires_grad_(True).train()
    tokens = torch.tensor([[0, 1, 2, 1], [2, 2, 0, 1], [1, 0, 0, 2]])
    scored = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4])
    model(tokens, labels=tokens.masked_fill(~scored, -100)).loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    other = tokens.where(scored, (tokens + 1) % V)
    first, second = (
        model.nll(t, scored, torch.Generator().manual_seed(5)) for t in (tokens, other)
    )
    assert torch.allclose(first, second) and first[2] == 0
