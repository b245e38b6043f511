"""Likelihood: one pass scores an order; the mean over orders is a bound, the mixture is exact."""

from itertools import permutations, product
from math import cos, log, pi, prod

import pytest
import torch
from hypothesis import given, settings
from small import KINDS, Case, case_of, cases

import armd
from armd.errors import ArmdError
from armd.model.likelihood import schedule_weight
from armd.order import Order


@settings(max_examples=25, deadline=None)
@given(case=cases(double=True))
def test_the_loss_is_minus_the_mean_log_likelihood(case: Case) -> None:
    with torch.no_grad():
        total = armd.log_likelihood(case.model, case.tokens, case.order).sum()
        loss = armd.loss(case.model, case.tokens, case.order)
    torch.testing.assert_close(total, -case.tokens.numel() * loss)


@pytest.mark.parametrize("kind", KINDS)
def test_log_likelihood_is_of_the_token_at_each_position(kind: str) -> None:
    case = case_of(kind, 8, 0, double=True)
    logp = armd.log_likelihood(case.model, case.tokens, case.order)
    table = case.model(case.tokens, order=case.order).logits.log_softmax(-1)
    position = case.order.rows(2).position.expand(2, 8)
    for row in range(2):
        for k in range(8):
            token = case.tokens[row, position[row, k]]
            torch.testing.assert_close(logp[row, k], table[row, k, token])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedule_weight_is_gamma_of_all_masked_tokens(schedule: str) -> None:
    """eq. VLoss_diff, enumerated: gamma(t) times all that is masked at t, summed over t, is the
    mean over masking orders of each token once, at the step that unmasks it, with weight 1."""
    n, steps = 3, 4
    alpha = [1 - t / steps if schedule == "linear" else cos(pi / 2 * t / steps) for t in range(5)]
    alpha[steps] = 0.0
    gamma = schedule_weight(steps, schedule)
    by_hand = [(alpha[t - 1] - alpha[t]) / (1 - alpha[t]) for t in range(1, 5)]
    torch.testing.assert_close(gamma, torch.tensor(by_hand, dtype=torch.float64))
    # any model of a token given a set of others: a table of -log p
    table = torch.rand(n, 2**n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    diffusion = orders = 0.0
    for tau in product(range(1, steps + 1), repeat=n):  # when each token is masked
        chance = prod(alpha[t - 1] - alpha[t] for t in tau)
        for t in range(1, steps + 1):
            written = sum(2**i for i in range(n) if tau[i] > t)
            masked = sum(float(table[i, written]) for i in range(n) if tau[i] <= t)
            diffusion += chance * float(gamma[t - 1]) * masked
        for i in range(n):
            written = sum(2**j for j in range(n) if tau[j] > tau[i])
            orders += chance * float(table[i, written])
    assert diffusion == pytest.approx(orders, rel=1e-12)


def test_weighted_loss_is_the_weighted_mean() -> None:
    case = case_of("masking", 9, 2, double=True)
    weight = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logp = armd.log_likelihood(case.model, case.tokens, case.order)
    loss = armd.loss(case.model, case.tokens, case.order, weight=weight)
    torch.testing.assert_close(loss, -(logp * weight).sum() / (2 * weight.sum()))


def test_an_estimate_has_its_error_and_its_tighter_bound() -> None:
    case = case_of("random", 6, 3, double=True)
    with torch.no_grad():
        many, again, one = (
            armd.any_order(
                case.model, case.tokens, draws=k, generator=torch.Generator().manual_seed(0)
            )
            for k in (64, 64, 1)
        )
    assert torch.equal(many.mean, again.mean)
    assert (many.log_mean_exp >= many.mean).all() and (many.standard_error > 0).all()
    assert (one.standard_error == 0).all()
    torch.testing.assert_close(one.log_mean_exp, one.mean)
    with pytest.raises(ArmdError, match="draws"):
        armd.any_order(case.model, case.tokens, draws=0)


@pytest.mark.parametrize("query", ["neighbor", "prefix", "shift"])
def test_tokens_of_any_whole_numbers_are_read_alike(query: str, unchecked: None) -> None:
    case, order = case_of("random", 6, 1, query=query), armd.order.left_to_right(6)
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)
    with torch.no_grad():
        for function in (armd.log_likelihood, armd.loss):
            exact = function(case.model, case.tokens, order)
            for kind in kinds:
                assert torch.equal(function(case.model, case.tokens.to(kind), order), exact)
            for kind in (torch.bool, torch.float32):
                with pytest.raises(ArmdError, match=f"not {str(kind)[6:]} of shape"):
                    function(case.model, case.tokens.to(kind), order)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("query", ["neighbor", "prefix", "mean"])
def test_of_no_text_there_is_no_likelihood_and_no_error(kind: str, query: str) -> None:
    case = case_of(kind, 6, 1, query=query)
    none, order = case.tokens[:0], case.order
    order = order[0] if order.batch else order
    for mask in (None, torch.ones(0, 6)):
        found = armd.log_likelihood(case.model, none, order, attention_mask=mask)
        assert found.shape == (0, 6) and found.dtype == torch.float32


def test_over_all_orders_log_mean_exp_is_the_exact_mixture() -> None:
    case = case_of("random", 4, 4, double=True, batch=1, vocab_size=3)
    every = [Order(torch.tensor(p), torch.arange(4)) for p in permutations(range(4))]
    draws = iter(every)
    with torch.no_grad():
        totals = [armd.log_likelihood(case.model, case.tokens, o).sum() for o in every]
        estimate = armd.any_order(
            case.model, case.tokens, draws=24, draw=lambda n, generator: next(draws)
        )
    total = torch.stack(totals)
    assert len(every) == 24
    exact = log(total.exp().sum().item() / 24)
    assert estimate.log_mean_exp.item() == pytest.approx(exact, abs=1e-12)
    assert estimate.mean.item() == pytest.approx(total.mean().item(), abs=1e-12)
    error = total.std().item() / 24**0.5
    assert estimate.standard_error.item() == pytest.approx(error, abs=1e-12)


def test_the_standard_error_covers_the_mean_over_all_orders() -> None:
    case = case_of("random", 4, 5, double=True, batch=1, vocab_size=3)
    every = [Order(torch.tensor(p), torch.arange(4)) for p in permutations(range(4))]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        exact = sum(armd.log_likelihood(case.model, case.tokens, o).sum() for o in every) / 24
        estimate = armd.any_order(case.model, case.tokens, draws=100, generator=generator)
    assert abs(estimate.mean - exact) < 4 * estimate.standard_error
