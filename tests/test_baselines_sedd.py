"""SEDD: the score entropy bounds -log p of the process that its rates define, with equality for
the true ratios; the sampler's leaps are exact for them."""

import itertools

import pytest
import torch
from small_diffusion import T, V, assert_follows, assert_mean, drawn_bounds, made
from torch import Tensor

from armd.baselines.sedd import Sedd, SeddAbsorb, SeddUniform

BOTH = [SeddAbsorb, SeddUniform]


def slow_in_time(kind: type[Sedd]) -> Sedd:
    """Without the time code's fast waves, so that an integral over time needs few points."""
    model = made(kind)
    model.time_code.inner.weight.view(16, 2, 8)[:, :, :4] = 0
    return model


def all_states(model: Sedd, n: int) -> Tensor:
    symbols = V + isinstance(model, SeddAbsorb)
    return torch.tensor(list(itertools.product(range(symbols), repeat=n)))


def grid(model: Sedd, points: int = 500) -> tuple[Tensor, Tensor]:
    """Times and their shares dt, dense at both ends, where rates grow without end."""
    end = torch.tensor(model.first_time - 1e-7 * (model.first_time == 1)).double().logit()
    edge = torch.linspace(-14, float(end), points + 1, dtype=torch.float64)
    time = ((edge[1:] + edge[:-1]) / 2).sigmoid()
    return time, edge.sigmoid().diff()


def ratios(model: Sedd, states: Tensor, time: Tensor) -> Tensor:
    """s_y (times, states, n, vocabulary)."""
    rows = states.repeat(len(time), 1)
    hidden = model.hidden(rows, time=time.repeat_interleave(len(states)))
    score = (hidden @ model.head_matrix().mT).exp()
    if isinstance(model, SeddAbsorb):
        each = time.repeat_interleave(len(states))[:, None, None]
        score = score / V * (1 - each) / each
    return score.view(len(time), len(states), *score.shape[1:])


def rate(model: Sedd, x: int, y: int, time: Tensor) -> Tensor:
    """noise(t) * Q(x, y) of the way back from x to y != x."""
    noise = 1 / (1 - time)
    if isinstance(model, SeddAbsorb):
        return noise * (x == V and y != V)
    return noise / V


def forward(model: Sedd, y: int, clean: int, time: Tensor) -> Tensor:
    """p_t(y | x0)."""
    fresh = (1 - time) * (y == clean)
    return fresh + time * ((y == V) if isinstance(model, SeddAbsorb) else 1 / V)


def exact_and_bound(model: Sedd, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """By the definitions: texts, -log p by Kolmogorov's equation, and the score entropy."""
    states, (time, share) = all_states(model, n), grid(model)
    index = {tuple(s): i for i, s in enumerate(states.tolist())}
    score, count = ratios(model, states, time), len(states)
    generator = torch.zeros(len(time), count, count, dtype=torch.float64)
    texts = states[(states < V).all(1)]
    bound = torch.zeros(len(texts), dtype=torch.float64)
    for (s, state), i in itertools.product(enumerate(states.tolist()), range(n)):
        for y in range(V):
            if y == state[i]:
                continue
            speed, to = rate(model, state[i], y, time), list(state)
            to[i] = y
            generator[:, s, index[tuple(to)]] += speed * score[:, s, i, y]
            generator[:, s, s] -= speed * score[:, s, i, y]
            for k, text in enumerate(texts.tolist()):
                chance = torch.ones_like(time)
                for now, clean in zip(state, text, strict=True):
                    chance = chance * forward(model, now, clean, time)
                if not bool(chance.any()):
                    continue
                r = forward(model, y, text[i], time) / forward(model, state[i], text[i], time)
                s_y = score[:, s, i, y]
                term = s_y - r * s_y.log() + torch.xlogy(r, r) - r
                bound[k] += (share * chance * speed * term).sum()
    p = torch.zeros(count, dtype=torch.float64)
    start = (states == V).all(1) if isinstance(model, SeddAbsorb) else torch.ones(count).bool()
    p[start] = 1 / start.sum()
    for step in torch.linalg.matrix_exp(generator * share[:, None, None]).flip(0):
        p = p @ step
    exact = torch.stack([p[index[tuple(t)]] for t in texts.tolist()])
    return texts, -exact.log(), bound + n * model.prior_kl()


@pytest.mark.parametrize("kind", BOTH)
def test_score_entropy_is_a_bound(kind: type[Sedd]) -> None:
    model = slow_in_time(kind)
    texts, exact, bound = exact_and_bound(model, 2)
    assert torch.allclose((-exact).exp().sum(), torch.ones((), dtype=torch.float64), atol=1e-3)
    assert (bound >= exact - 1e-3).all() and (bound > exact + 1e-2).any()
    assert_mean(drawn_bounds(model, texts, rows=3000), bound)


@pytest.mark.parametrize("kind", BOTH)
def test_score_entropy_of_the_true_ratios_is_exact(kind: type[Sedd]) -> None:
    """One token, for which the true ratios are known: logits are given, not the network's."""
    model, truth = made(kind), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    time, share = grid(model)
    for clean in range(V):
        bound = torch.full((), model.prior_kl(), dtype=torch.float64)
        for now in [V] if kind is SeddAbsorb else range(V):
            logits = true_logits(model, truth, time, now)
            symbols = [torch.full_like(time, s, dtype=torch.long) for s in (now, clean)]
            cost = model.entropy(logits, *symbols, time)
            bound += (share * forward(model, now, clean, time) * cost).sum()
        assert torch.allclose(bound, -truth[clean].log(), atol=2e-3)


def true_logits(model: Sedd, truth: Tensor, time: Tensor, now: int) -> Tensor:
    if isinstance(model, SeddAbsorb):
        return (truth * V).log().expand(len(time), V)
    marginal = (1 - time)[:, None] * truth + time[:, None] / V
    return (marginal / marginal[:, [now]]).log()


@pytest.mark.parametrize("kind", BOTH)
def test_leaps_are_exact_for_the_true_ratios(kind: type[Sedd]) -> None:
    model, truth = made(kind), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    symbols = range(V + 1) if kind is SeddAbsorb else range(V)

    def marginal(t: float) -> Tensor:
        at = torch.tensor([t], dtype=torch.float64)
        rows = [[forward(model, y, c, at) for c in range(V)] for y in symbols]
        return torch.tensor(rows, dtype=torch.float64) @ truth

    for time, to in ((0.9, 0.5), (0.5, 0.1), (0.3, 0.0)):
        after = marginal(time) * (torch.arange(len(symbols)) < V) * (kind is SeddAbsorb)
        for now in [V] if kind is SeddAbsorb else symbols:
            logits = true_logits(model, truth, torch.tensor([time]).double(), now)
            weight = model.leap(logits, torch.tensor([now]), time, to)[0]
            after = after + marginal(time)[now] * weight / weight.sum()
        assert torch.allclose(after, marginal(to))


@pytest.mark.parametrize("kind", BOTH)
def test_sampler_follows_its_process(kind: type[Sedd]) -> None:
    model, generator = made(kind), torch.Generator().manual_seed(2)
    states = all_states(model, 3)
    p = torch.zeros(len(states), dtype=torch.float64)
    start = (states == V).all(1) if kind is SeddAbsorb else torch.ones(len(states)).bool()
    p[start] = 1 / start.sum()
    for step in range(T):
        time, to = (model.first_time * (1 - s / T) for s in (step, step + 1))
        times = torch.full((len(states),), time, dtype=torch.float64)
        rows, open_ = model.hidden(states, time=times), model.movable(states)
        weight = model.weights(rows[open_], states[open_], time, to)
        each = torch.nn.functional.one_hot(states, weight.shape[1]).double()
        each[open_] = weight / weight.sum(1, keepdim=True)
        move = torch.ones(len(states), len(states), dtype=torch.float64)
        for i in range(3):
            move *= each[:, i][:, states[:, i]]
        p = p @ move
    assert torch.allclose(p.sum(), torch.ones((), dtype=torch.float64))
    drawn = model.sample(batch=6000, length=3, steps=T, generator=generator)
    assert drawn.calls <= T and int(drawn.tokens.max()) < V
    assert_follows(drawn.tokens, p[(states < V).all(1)].log())


@pytest.mark.parametrize("kind", BOTH)
def test_temperature_sharpens(kind: type[Sedd]) -> None:
    """One token with the true ratios, written in 50 steps."""
    model, truth = made(kind), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    p = torch.tensor([0.0, 0, 0, 1] if kind is SeddAbsorb else [1 / V] * V, dtype=torch.float64)
    for step in range(50):
        time, to = (model.first_time * (1 - s / 50) for s in (step, step + 1))
        after = p * (torch.arange(len(p)) < V) * (kind is SeddAbsorb)
        for now in [V] if kind is SeddAbsorb else range(V):
            logits = true_logits(model, truth, torch.tensor([time]).double(), now)
            weight = model.leap(model.tempered(logits, 0.5), torch.tensor([now]), time, to)[0]
            after = after + p[now] * weight / weight.sum()
        p = after
    assert p[0] > truth[0] + 0.1 and p[2] < truth[2] - 0.04
