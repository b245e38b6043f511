"""The samplers draw from the distribution they say, down to its rarest tokens."""

import pytest
import torch
from small import case_of

import armd
from armd.model.sampling import Sampling, invert, weights
from armd.native.sample import draw
from armd.order import Order

DRAWS = 50_000


def probability_of_chance(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """How often counts as far from `expected` as these would come by chance (chi-square)."""
    assert int(counts[expected == 0].sum()) == 0
    real = expected > 0
    statistic = ((counts[real] - expected[real]) ** 2 / expected[real]).sum()
    freedom = torch.tensor((int(real.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def every_text(vocabulary: int, n: int) -> torch.Tensor:
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * n)


def code(texts: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The number of each text in `every_text`."""
    return (texts * vocabulary ** torch.arange(texts.shape[1] - 1, -1, -1)).sum(1)


def tried(order: Order, known: torch.Tensor, text: torch.Tensor, seed: int) -> None:
    """Draw, and compare with the exact probability of each of the 81 texts."""
    case = case_of("random", 4, seed, vocab_size=3, n_two_stream=2)
    texts = every_text(3, 4)
    with torch.no_grad():
        logp = armd.log_likelihood(case.model, texts, order).double()
    blank = ~known[order.position]
    possible = ((texts == text) | ~known).all(1)
    exact = (logp * blank).sum(1).exp() * possible
    assert abs(float(exact.sum()) - 1) < 1e-5
    drawn = []
    for _ in range(10):
        tokens = text.expand(DRAWS // 10, 4).clone()
        drawn.append(armd.infill(case.model, tokens, known, order=order, generator=case.generator))
    counts = torch.bincount(code(torch.cat(drawn), 3), minlength=81).double()
    assert probability_of_chance(counts, exact / exact.sum() * DRAWS) > 1e-4


def test_left_to_right_draws_from_its_distribution(unchecked: None) -> None:
    nothing = torch.zeros(4, dtype=torch.bool)
    tried(armd.order.left_to_right(4), nothing, torch.zeros(4, dtype=torch.long), 1)


def test_strided_streams_draw_from_their_distribution(unchecked: None) -> None:
    nothing = torch.zeros(4, dtype=torch.bool)
    tried(armd.order.strided(4, 2), nothing, torch.zeros(4, dtype=torch.long), 2)


def test_infilling_draws_from_its_distribution(unchecked: None) -> None:
    known = torch.tensor([False, True, False, False])
    tried(armd.order.infill(known, streams=2), known, torch.tensor([0, 2, 0, 0]), 3)


def test_the_chi_square_test_would_notice() -> None:
    expected = torch.full((81,), DRAWS / 81, dtype=torch.float64)
    wrong = torch.cat([expected[:40] * 1.1, expected[40:41], expected[41:] * 0.9])
    assert probability_of_chance(expected, expected) > 0.99
    assert probability_of_chance(wrong, expected) < 1e-9


PROBABILITY = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64)


def close(sampling: Sampling, expected: list[float]) -> None:
    weight = weights(PROBABILITY.log(), sampling)
    torch.testing.assert_close(
        weight / weight.sum(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_filters_against_distributions_made_by_hand() -> None:
    close(Sampling(), [0.5, 0.25, 0.15, 0.1])
    close(Sampling(top_k=2), [2 / 3, 1 / 3, 0, 0])
    close(Sampling(top_k=9), [0.5, 0.25, 0.15, 0.1])
    close(Sampling(top_p=0.4), [1, 0, 0, 0])
    close(Sampling(top_p=0.6), [2 / 3, 1 / 3, 0, 0])
    close(Sampling(top_p=0.8), [5 / 9, 2.5 / 9, 1.5 / 9, 0])
    close(Sampling(top_p=1.0), [0.5, 0.25, 0.15, 0.1])
    close(Sampling(min_p=0.25), [5 / 9, 2.5 / 9, 1.5 / 9, 0])
    close(Sampling(min_p=1.0), [1, 0, 0, 0])
    squares = [0.25, 0.0625, 0.0225, 0.01]
    close(Sampling(temperature=0.5), [part / sum(squares) for part in squares])
    close(Sampling(temperature=0.5, top_k=2), [0.8, 0.2, 0, 0])  # one after the other
    close(Sampling(top_k=3, top_p=0.6), [2 / 3, 1 / 3, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # in torch, and in C
def test_draws_follow_the_filtered_distribution(dtype: torch.dtype) -> None:
    logits = PROBABILITY.log().to(dtype).expand(DRAWS, 1, 4)
    uniform = torch.rand(DRAWS, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    token, logp = draw(logits, uniform, Sampling(temperature=0.5, top_k=3))
    squares = torch.tensor([0.25, 0.0625, 0.0225, 0], dtype=torch.float64)
    counts = torch.bincount(token.flatten(), minlength=4).double()
    assert probability_of_chance(counts, squares / squares.sum() * DRAWS) > 1e-4
    # the log-probability is the model's own, whatever the temperature
    torch.testing.assert_close(logp, PROBABILITY.log()[token], rtol=1e-6, atol=1e-7)


def test_greedy_takes_the_most_probable_and_the_penalty_can_change_it() -> None:
    logits = torch.tensor([[[2.0, 1.5, -1.0]]])
    uniform = torch.full((1, 1), 0.999, dtype=torch.float64)
    assert int(draw(logits, uniform, Sampling(temperature=0.0))[0]) == 0
    seen = torch.tensor([[True, False, True]])
    sharp = Sampling(temperature=0.0, repetition_penalty=2.0)
    assert int(draw(logits, uniform, sharp, seen)[0]) == 1


def test_the_penalty_halves_positive_scores_and_doubles_negative_ones() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0]]).expand(DRAWS, 1, 3)
    seen = torch.tensor([True, False, True]).expand(DRAWS, 3)
    uniform = torch.rand(DRAWS, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    token, _ = draw(logits, uniform, Sampling(repetition_penalty=2.0), seen)
    expected = torch.tensor([1.0, 1.5, -2.0], dtype=torch.float64).softmax(0)
    counts = torch.bincount(token.flatten(), minlength=3).double()
    assert probability_of_chance(counts, expected * DRAWS) > 1e-4


def test_no_token_of_probability_1e_12_is_impossible() -> None:
    for place in range(3):
        share = torch.tensor([0.5, 0.5 - 1e-12], dtype=torch.float64).tolist()
        share.insert(place, 1e-12)
        cumulative = torch.tensor(share, dtype=torch.float64).cumsum(0)
        start = float(cumulative[place - 1]) if place else 0.0
        uniform = torch.tensor(start + 5e-13, dtype=torch.float64)
        assert int(invert(cumulative, uniform)) == place
        # float32 could not tell it from its neighbours, if it is not the first
        assert place == 0 or float(uniform.float()) == float(torch.tensor(start).float())


def test_the_rare_token_survives_a_vocabulary_of_50257() -> None:
    logits = torch.zeros(1, 1, 50257)
    logits[..., 40_000] = torch.tensor(1e-12 * 50257).log()
    mass = logits.double().exp()
    cumulative = mass.cumsum(-1)
    middle = (cumulative[0, 0, 39_999] + cumulative[0, 0, 40_000]) / 2 / cumulative[0, 0, -1]
    assert int(draw(logits, middle.reshape(1, 1), Sampling())[0]) == 40_000


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53, 0.5, 2**-53])
def test_no_token_of_probability_0_is_drawn(uniform: float) -> None:
    for logits in ([-torch.inf, 0, -torch.inf, 0, -torch.inf], [-torch.inf, -torch.inf, 3.0]):
        scores = torch.tensor([[logits]])
        number = torch.full((1, 1), uniform, dtype=torch.float64)
        token, logp = draw(scores, number, Sampling())
        assert scores[0, 0, int(token)] > -torch.inf and bool(logp > -torch.inf)
        token, _ = draw(scores, number, Sampling(temperature=0.7, top_p=0.9))
        assert scores[0, 0, int(token)] > -torch.inf


def test_foolish_settings_are_refused() -> None:
    for wrong in (
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"temperature": 0.0, "top_p": 0.9},
    ):
        with pytest.raises(armd.ArmdError):
            Sampling(**wrong)
