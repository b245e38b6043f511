"""In every order the model is a distribution: over all texts, probabilities sum to one."""

from itertools import product

import pytest
import torch
from small import KINDS, case_of

import armd


@pytest.mark.parametrize("query", ["prefix", "mean", "neighbor"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rows"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_probabilities_of_all_texts_sum_to_one(kind: str, seed: int, query: str) -> None:
    case = case_of(kind, 4, seed, double=True, vocab_size=3, query=query)
    every = torch.tensor(list(product(range(3), repeat=4)))
    with torch.no_grad():
        logp = armd.log_likelihood(case.model, every, case.order).sum(1)
    assert len(every) == 81
    assert logp.exp().min() != logp.exp().max()
    torch.testing.assert_close(logp.exp().sum().item(), 1.0, rtol=1e-12, atol=1e-12)


def test_probabilities_sum_to_one_left_to_right_with_the_shifted_query() -> None:
    case = case_of("left to right", 4, 0, double=True, vocab_size=3, query="shift")
    every = torch.tensor(list(product(range(3), repeat=4)))
    with torch.no_grad():
        logp = armd.log_likelihood(case.model, every, case.order).sum(1)
    torch.testing.assert_close(logp.exp().sum().item(), 1.0, rtol=1e-12, atol=1e-12)
