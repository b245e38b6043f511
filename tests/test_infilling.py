"""Several candidates for a blank: their weights are ratios of exact likelihoods, what is kept comes
to the left-to-right model's own distribution, and what is said of it is a lower bound."""

from itertools import product
from math import log

import pytest
import torch
from eval_models import VOCABULARY, tiny_armd

import armd
from armd.errors import ArmdError
from armd.eval.infill_candidates import least_log_p
from armd.generation.decoder import Decoder
from armd.generation.plan import from_blanks
from armd.infilling import AT_ONCE, BEHIND, Blank, Filling, blanks_of, choose_fills
from armd.model.sampling import Sampling
from armd.native import library as native
from armd.native.packed import pack
from armd.runtime.seeds import seeded

compiled = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
KINDS = {
    "prefix": {},
    "neighbor": {"query": "neighbor"},
    "converted": {"query": "neighbor", "right_offset": 16, "right_bias": True, "adapter_rank": 2},
}
N = 14
GAPS = [[0, 1], [5, 6, 7], [13]]


def case(kind: str) -> tuple[armd.ArmdLM, list[int], list[bool]]:
    model = tiny_armd(**KINDS[kind])
    text = torch.randint(VOCABULARY, (N,), generator=seeded(3)).tolist()
    return model, text, [not any(at in gap for gap in GAPS) for at in range(N)]


def whole_log_p(model: armd.ArmdLM, text: list[int], order: armd.Order) -> torch.Tensor:
    """In natural order, by one pass over the whole text."""
    with torch.no_grad():
        logp = armd.log_likelihood(model, torch.tensor([text]), order)[0].double()
    return logp[order.rows(1).inverse()[0]]


def test_blanks_are_the_unknown_runs_and_end_before_the_next():
    known = [not any(at in gap for gap in GAPS) for at in range(N)]
    assert blanks_of(known) == [Blank(0, 2, 5), Blank(5, 8, 13), Blank(13, 14, 14)]
    assert blanks_of([True] * 4) == []
    long = [True, False, *[True] * 100]
    assert blanks_of(long) == [Blank(1, 2, 2 + BEHIND)]


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=compiled)])
@pytest.mark.parametrize("streams, candidates", [(1, 2), (8, 2), (1, AT_ONCE + 1)])
def test_model_calls_are_counted_as_they_are_made(packed, streams, candidates, monkeypatch):
    model, text, known = case("neighbor")
    made, steps = [], Decoder.steps
    monkeypatch.setattr(Decoder, "steps", lambda *words: made.append(0) or steps(*words))
    plans = from_blanks(torch.tensor([text]), torch.tensor(known))
    model = pack(model) if packed else model
    assert choose_fills(model, plans, candidates, streams=streams)[1] == len(made) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=compiled)])
@pytest.mark.parametrize("streams", [1, 2])
def test_a_weight_is_left_to_right_over_as_drawn(kind, packed, streams, unchecked):
    """For each blank, the ones before it being filled."""
    model, text, known = case(kind)
    filling = Filling(pack(model) if packed else model, text, known, streams=streams)
    order = armd.order.Order(torch.tensor(filling.position), torch.tensor(filling.block))
    if streams == 1:
        whole = armd.order.infill(torch.tensor(known))
        assert order.position.equal(whole.position) and order.block.equal(whole.block)
    for start, end, behind in filling.blanks:
        true = text[start:end]
        options = {"sampling": Sampling(), "generator": seeded(1), "given": true}
        found = filling.draw(Blank(start, end, behind), 5, **options)
        assert found.fills[-1] == true
        for number, fill in enumerate(found.fills):
            # what is still blank comes later in both orders, so that its tokens change nothing
            filled = [*text[:start], *fill, *text[end:]]
            drawn = whole_log_p(model, filled, order)[start:end].sum().item()
            assert found.drawn[number] == pytest.approx(drawn, abs=1e-3)
            left = whole_log_p(model, filled, armd.order.left_to_right(N))[start:behind].sum()
            assert found.weight[number] == pytest.approx(left.item() - drawn, abs=2e-3)
        filling.keep(Blank(start, end, behind), true)
    assert filling.text == text and all(filling.known)


@compiled
@pytest.mark.parametrize("streams", [1, 2])
def test_reading_what_is_given_once_changes_no_fill(streams, unchecked):
    """The torch form reads it for each candidate of each blank."""
    model, text, known = case("converted")
    tokens, there = torch.tensor([text] * 4), torch.tensor(known)
    options = {"candidates": 40, "streams": streams}
    sides = [
        armd.infill(one, tokens, there, generator=seeded(7), **options)
        for one in (model, pack(model))
    ]
    assert torch.equal(*sides)
    assert len({tuple(row) for row in sides[0].tolist()}) == 4
    assert sides[0][:, there].eq(tokens[:, there]).all()


def two_of_four() -> tuple[armd.ArmdLM, list[int], list[bool], dict[tuple[int, ...], torch.Tensor]]:
    """A blank of two tokens of a vocabulary of three; for each fill log q and log w."""
    model = tiny_armd(vocab_size=3, query="neighbor")
    text, known = [2, 0, 0, 1, 0], [True, False, False, True, True]
    found = {}
    for fill in product(range(3), repeat=2):
        filled = [2, *fill, 1, 0]
        drawn = whole_log_p(model, filled, armd.order.infill(torch.tensor(known)))[1:3].sum()
        left = whole_log_p(model, filled, armd.order.left_to_right(5))[1:].sum()
        found[fill] = torch.stack([drawn, left - drawn])
    return model, text, known, found


@compiled
def test_with_many_candidates_fills_are_as_left_to_right_knows_both_sides(unchecked):
    model, text, known, found = two_of_four()
    drawn, weight = torch.stack(list(found.values())).T
    aim, one = (drawn + weight).softmax(0), drawn.exp()
    rows, fast = 300, pack(model)
    tokens, there = torch.tensor([text]).expand(rows, -1), torch.tensor(known)

    def frequencies(candidates: int) -> torch.Tensor:
        filled = armd.infill(fast, tokens, there, candidates=candidates, generator=seeded(5))
        places = [list(found).index((a, b)) for a, b in filled[:, 1:3].tolist()]
        assert filled[:, [0, 3, 4]].eq(tokens[:, [0, 3, 4]]).all()
        return torch.bincount(torch.tensor(places), minlength=9) / rows

    def apart(a: torch.Tensor, b: torch.Tensor) -> float:
        return (a - b).abs().sum().item() / 2

    assert apart(aim, one) > 0.2  # or nothing would be shown
    assert apart(frequencies(1), one) < 0.1
    assert apart(frequencies(24), aim) < 0.1


@compiled
def test_what_is_said_of_candidates_is_at_most_their_log_probability(unchecked):
    """Two candidates, all pairs enumerated."""
    model, _, known, found = two_of_four()
    drawn, weight = torch.stack(list(found.values())).T
    kept = (weight[:, None] - torch.logaddexp(weight[:, None], weight)).exp()
    exact = 2 * (drawn.exp()[:, None] * drawn.exp() * kept).sum(1)
    assert exact.sum().item() == pytest.approx(1, abs=1e-5)
    bound = drawn + log(2) + (drawn.exp() * kept.log()).sum(1)
    assert (bound <= exact.log() + 1e-9).all()
    fast, blank = pack(model), ~torch.tensor(known)
    for number, fill in list(enumerate(found))[::3]:
        options = {"candidates": 2, "generator": seeded(number)}
        filled = torch.tensor([2, *fill, 1, 0])
        said = [least_log_p(fast, filled, blank, **options)[0] for _ in range(200)]
        mean, error = torch.tensor(said).mean(), torch.tensor(said).std() / 200**0.5
        assert abs(mean - bound[number]) < 4 * error + 1e-4


def test_candidates_that_cannot_be_are_refused(unchecked):
    model, text, known = case("neighbor")
    tokens, there = torch.tensor([text]), torch.tensor(known)
    for wrong in (0, -1, 2.0, "2", None):
        with pytest.raises(ArmdError, match="candidates"):
            armd.infill(model, tokens, there, candidates=wrong)
    for wrong in (known, there.int(), there.float()):
        with pytest.raises(ArmdError, match="tensor of bools"):
            armd.infill(model, tokens, wrong)
    for option in ({"order": armd.order.left_to_right(N)}, {"eos": 1}):
        with pytest.raises(ArmdError, match="their own order"):
            armd.infill(model, tokens, there, candidates=2, **option)
