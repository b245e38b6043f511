"""A masked LM: trained as BERT, scored by its pseudo-likelihood, written by Gibbs sampling."""

import itertools

import pytest
import torch
from small_diffusion import (
    TEXTS,
    N,
    V,
    assert_follows,
    assert_mean,
    drawn_bounds,
    log_probs,
    made,
    over_orders,
)
from torch import Tensor

from armd.baselines.bert_mouth import BertMouth


def given_all_others(model: BertMouth, texts: Tensor) -> Tensor:
    """-log p of each token (texts, n), one token masked at a time."""
    found = []
    for i in range(texts.shape[1]):
        noisy = texts.clone()
        noisy[:, i] = model.mask_id
        every = log_probs(model, noisy, 1.0)[:, i]
        found.append(-every.gather(1, texts[:, i : i + 1]))
    return torch.cat(found, 1)


def test_its_figure_is_the_pseudo_likelihood() -> None:
    model = made(BertMouth)
    assert_mean(drawn_bounds(model, TEXTS), given_all_others(model, TEXTS).sum(1))


def test_of_independent_tokens_it_is_the_likelihood() -> None:
    model = made(BertMouth, blind=True)
    pseudo = given_all_others(model, TEXTS).sum(1)
    assert torch.allclose(pseudo, -over_orders(model, TEXTS).mean(0), atol=1e-9)
    assert torch.allclose((-pseudo).exp().sum(), torch.ones((), dtype=torch.float64))


def test_texts_are_spoilt_as_berts_are() -> None:
    model, generator = made(BertMouth), torch.Generator().manual_seed(0)
    tokens = torch.randint(V, (4000, 16), generator=generator)
    scored = torch.ones_like(tokens, dtype=torch.bool)
    scored[:, 14:] = False
    chosen, noisy = model.corrupt(tokens, scored, generator)
    assert (chosen.sum(1) == 2).all() and not chosen[:, 14:].any()  # 15 % of 14
    assert torch.equal(noisy[~chosen], tokens[~chosen])
    masked = (noisy == model.mask_id)[chosen].double().mean()
    same = (noisy == tokens)[chosen].double().mean()  # a token drawn at random may be the same
    assert abs(masked - 0.8) < 0.02 and abs(same - 0.1 - 0.1 / V) < 0.02
    single = torch.zeros(3, 16, dtype=torch.bool)
    single[0, 5] = single[1, 3] = True
    assert model.corrupt(tokens[:3], single, generator)[0].sum(1).tolist() == [1, 1, 0]


def test_training_minimises_the_mean_of_the_chosen() -> None:
    model = made(BertMouth).requires_grad_(True).train()
    tokens = TEXTS.repeat(1, 4)
    torch.manual_seed(3)
    loss = model(tokens, labels=tokens).loss
    torch.manual_seed(3)
    chosen, noisy = model.corrupt(tokens, torch.ones_like(tokens, dtype=torch.bool), None)
    every = log_probs(model, noisy, 1.0).gather(-1, tokens[..., None])[..., 0]
    assert torch.allclose(loss, -every[chosen].mean())
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def visit(model: BertMouth, states: Tensor, now: tuple[int, ...]) -> Tensor:
    """The chance of going from state to state in a step that draws these places."""
    noisy = states.clone()
    noisy[:, now] = model.mask_id
    p = log_probs(model, noisy, 1.0).exp()
    move = torch.ones(len(states), len(states), dtype=torch.float64)
    for i in range(N):
        if i in now:
            move *= torch.nn.functional.pad(p[:, i], (0, 1))[:, states[:, i]]
        else:
            move *= (states[:, i, None] == states[:, i]).double()
    return move


@pytest.mark.parametrize("steps, sweeps", [(3, 1), (6, 2), (2, 1)])
def test_the_sampler_follows_its_chain(steps: int, sweeps: int) -> None:
    """The chain enumerated: all states, with MASK, and all orders of visits."""
    model = made(BertMouth)
    states = torch.tensor(list(itertools.product(range(V + 1), repeat=N)))
    together = -(-N // steps)
    moves = {
        now: visit(model, states, now)
        for size in {together, N - together} & {1, 2}
        for now in itertools.permutations(range(N), size)
    }
    orders = list(itertools.permutations(range(N)))
    sweep = torch.zeros(len(states), len(states), dtype=torch.float64)
    for order in orders:
        one = torch.eye(len(states), dtype=torch.float64)
        for start in range(0, N, together):
            one = one @ moves[order[start : start + together]]
        sweep += one / len(orders)
    p = (states == V).all(1).double()
    for _ in range(sweeps):
        p = p @ sweep
    generator = torch.Generator().manual_seed(2)
    drawn = model.sample(batch=6000, length=N, steps=steps, generator=generator)
    assert drawn.calls == steps and int(drawn.tokens.max()) < V
    assert_follows(drawn.tokens, p[(states < V).all(1)].log())
