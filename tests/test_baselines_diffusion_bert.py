"""DiffusionBERT: masks come by the frequency of tokens, and the bound holds for the process that
writes, by enumeration of all states."""

import itertools
import math

import pytest
import torch
from small_diffusion import (
    TEXTS,
    N,
    T,
    V,
    assert_follows,
    assert_mean,
    d3pm_bound,
    drawn_bounds,
    log_probs,
    made,
)
from torch import Tensor

from armd.baselines.diffusion_bert import STRENGTH, DiffusionBert

STATES = torch.tensor(list(itertools.product(range(V + 1), repeat=N)))


def with_frequencies() -> DiffusionBert:
    model = made(DiffusionBert)
    model.unigram.copy_(torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log() / 10)
    return model


def masked(c: float, t: float) -> float:
    return t - STRENGTH * c * math.sin(math.pi * t)


def kernels(model: DiffusionBert, step: int) -> tuple[Tensor, Tensor]:
    """One step back from time step/T, by the definition: the chance of each symbol at each place
    (states, n, V + 1) for the model, and (V, V + 1) for a masked token of known true value."""
    c, t, s = model.spindle().tolist(), step / T, (step - 1) / T
    true = torch.zeros(V, V + 1, dtype=torch.float64)
    for w in range(V):
        back = (masked(c[w], t) - masked(c[w], s)) / masked(c[w], t)
        true[w, w], true[w, V] = back, 1 - back
    p = log_probs(model, STATES, 1.0).exp()
    each = torch.nn.functional.one_hot(STATES, V + 1).double()
    open_ = STATES == V
    each[open_] = p[open_] @ true  # it draws a token and then whether that appears
    return each, true


def enumerated(model: DiffusionBert) -> tuple[Tensor, Tensor]:
    """-log p of every text by the process of T steps, and the sum of the KLs."""
    index = (TEXTS * (V + 1) ** torch.arange(N - 1, -1, -1)).sum(1)
    chain, bound = (STATES == V).all(1).double(), torch.zeros(len(TEXTS), dtype=torch.float64)
    c = model.spindle().tolist()
    for step in range(T, 0, -1):
        each, true = kernels(model, step)
        gone = torch.tensor([masked(c[w], step / T) for w in range(V)])
        for k, text in enumerate(TEXTS):
            chance = torch.ones(len(STATES), dtype=torch.float64)
            kl = torch.zeros(len(STATES), dtype=torch.float64)
            for i, w in enumerate(text.tolist()):
                now = STATES[:, i]
                chance *= torch.where(now == V, gone[w], (now == w) * (1 - gone[w]))
                term = torch.special.xlogy(true[w], true[w]) - torch.special.xlogy(
                    true[w], each[:, i]
                )
                kl += torch.where(now == V, term.nan_to_num().sum(1), 0.0)
            bound[k] += (chance * kl.where(chance > 0, 0.0)).sum()
        move = torch.ones(len(STATES), len(STATES), dtype=torch.float64)
        for i in range(N):
            move *= each[:, i][:, STATES[:, i]]
        chain = chain @ move
    return -chain[index].log(), bound


def test_the_bound_is_a_bound_of_the_process_that_writes() -> None:
    model = with_frequencies()
    exact, bound = enumerated(model)
    assert torch.allclose((-exact).exp().sum(), torch.ones((), dtype=torch.float64))
    assert (bound >= exact - 1e-9).all() and (bound > exact + 1e-3).any()
    assert_mean(drawn_bounds(model, TEXTS), bound)
    drawn = model.sample(batch=6000, length=N, steps=T, generator=torch.Generator().manual_seed(2))
    assert_follows(drawn.tokens, -exact)


def test_without_frequencies_it_is_d3pm() -> None:
    model = made(DiffusionBert)
    model.unigram.zero_()
    bound = enumerated(model)[1]
    assert torch.allclose(bound, d3pm_bound(model, TEXTS))


def test_rare_tokens_are_masked_first_and_the_ends_are_fixed() -> None:
    c = with_frequencies().spindle()
    assert c[0] > c[1] > c[2] and c.abs().max() <= 1
    for w in c.tolist():
        path = [masked(w, t / 100) for t in range(101)]
        assert path[0] == 0 and path[-1] == pytest.approx(1)
        assert all(a < b for a, b in itertools.pairwise(path))
    assert masked(float(c[2]), 0.5) > 0.5 > masked(float(c[0]), 0.5)


def test_training_learns_the_frequencies_and_nothing_else_of_them() -> None:
    model = made(DiffusionBert).requires_grad_(True).train()
    model.unigram.data.zero_()
    tokens = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 0]])
    model(tokens, labels=tokens).loss.backward()
    count = torch.bincount(tokens.flatten(), minlength=V) / tokens.numel()
    assert torch.allclose(model.unigram.grad, 10 * (1 / V - count).double())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_a_step_that_writes_nothing_costs_no_call() -> None:
    model = with_frequencies()
    drawn = model.sample(batch=1, length=3, steps=50, generator=torch.Generator().manual_seed(1))
    assert drawn.calls <= 3 and int(drawn.tokens.max()) < V


def test_pads_are_never_noised_and_never_matter() -> None:
    model = with_frequencies()
    tokens, scored = TEXTS[5:9].repeat(1, 3), torch.ones(4, 3 * N, dtype=torch.bool)
    scored[:2, 4:] = False
    scored[3] = False
    other = tokens.where(scored, (tokens + 1) % V)
    first, second = (
        model.nll(t, scored, torch.Generator().manual_seed(5)) for t in (tokens, other)
    )
    assert torch.equal(first, second) and first[3] == 0
