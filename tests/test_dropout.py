"""Dropout drops each place by itself with its probability, keeps the mean, and passes back what it
let through."""

import pytest
import torch

import armd
from armd.model.cpu_ops import Dropout, dropped_places


@pytest.mark.parametrize("p", [0.003, 0.02, 0.3, 0.9])
def test_each_place_is_dropped_by_itself_with_probability_p(p: float):
    torch.manual_seed(0)
    count, draws = 40, 20_000
    drawn = torch.zeros(draws, count, dtype=torch.float64)
    for row in drawn:
        row[dropped_places(count, p)] = 1
    spread = (p * (1 - p) / draws) ** 0.5
    assert (drawn.mean(0) - p).abs().max() < 4.5 * spread
    # neighbours know nothing of each other: the covariance of two of them is 0
    covariance = (drawn - p).T @ (drawn - p) / draws
    covariance.fill_diagonal_(0)
    assert covariance.abs().max() < 5.5 * p * (1 - p) / draws**0.5
    # and the number of dropped places spreads as a binomial does
    assert float(drawn.sum(1).var()) == pytest.approx(count * p * (1 - p), rel=0.08)


def test_one_long_draw_is_sorted_without_repeats_and_inside():
    torch.manual_seed(1)
    for count in (1, 2, 1_000_003):
        places = dropped_places(count, 0.02)
        assert bool((places.diff() > 0).all())
        assert bool(((places >= 0) & (places < count)).all())


def test_what_is_kept_is_scaled_and_its_gradient_with_it():
    torch.manual_seed(2)
    rows = torch.ones(64, 33, dtype=torch.float64).t().requires_grad_()  # not contiguous
    out = Dropout(0.25)(rows)
    kept = out != 0
    assert torch.equal(out, kept.double() * (1 / (1 - 0.25)))
    out.mul(torch.arange(64.0)).sum().backward()
    assert rows.grad is not None
    assert torch.allclose(rows.grad, kept * torch.arange(64.0).double() / (1 - 0.25))
    assert 0.15 < float(1 - kept.double().mean()) < 0.35


def test_it_does_nothing_where_it_should_not():
    rows = torch.randn(8, 8)
    assert Dropout(0.5).eval()(rows) is rows
    assert torch.equal(Dropout(0.0)(rows), rows)
    assert not Dropout(1.0)(rows).any()


def test_activation_checkpointing_drops_the_same_places_again():
    config = armd.ArmdConfig(
        vocab_size=17, d_model=16, n_layers=3, n_two_stream=2, n_heads=2, max_length=12, dropout=0.3
    )
    model, tokens = armd.ArmdLM(config).train(), torch.randint(17, (2, 12))
    found = []
    for model.gradient_checkpointing in (False, True):
        torch.manual_seed(3)
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(found[0]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
