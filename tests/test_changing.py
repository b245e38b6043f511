"""docs/changing.md, walked through: a model with a part that the C kernels do not know is decoded
as it is scored, and the user is told."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from small import case_of
from torch.nn import functional as F

import armd
from armd.checked_pack import largest_difference, pack_checked
from armd.model.layers import Layer
from armd.model.streams import CausalLayer, LastTwoStreamLayer, TwoStreamLayer
from armd.native.library import library
from armd.native.packed import FastLM, pack

needs_c = pytest.mark.skipif(library() is None, reason="no C compiler: nothing is packed")
SIZE = {"d_model": 16, "n_heads": 2, "n_layers": 3, "n_two_stream": 2}


def norm_queries(self, rows, rope, original=Layer.queries):
    query = original(self, rows, rope)
    return F.rms_norm(query, query.shape[-1:])


def norm_keys(self, rows, rope, original=Layer.keys_values):
    key, value = original(self, rows, rope)
    return F.rms_norm(key, key.shape[-1:]), value


def by_decoding(model: armd.ArmdLM) -> tuple[torch.Tensor, float]:
    """A text drawn with two streams, and its log p as decoding tells it."""
    text, total = torch.zeros(1, 10, dtype=torch.long), 0.0
    drawn_by = torch.Generator().manual_seed(1)
    for step in armd.stream(model, length=10, streams=2, generator=drawn_by):
        text.scatter_(1, step.position, step.token)
        total += float(step.logp.sum())
    return text, total


@needs_c
@pytest.mark.parametrize("query", ["prefix", "mean", "shift", "neighbor"])
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_model_as_it_is_stays_packed_without_a_word(query: str, weights: str) -> None:
    model = case_of("random", 5, 1, query=query, **SIZE).model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(pack_checked(model, weights), FastLM)


@needs_c
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_qk_norm_added_to_the_layers_is_never_silently_dropped(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/changing.md does it: two methods of Layer, edited in place."""
    monkeypatch.setattr(Layer, "queries", norm_queries)
    monkeypatch.setattr(Layer, "keys_values", norm_keys)
    model = case_of("random", 5, 1, **SIZE).model
    assert largest_difference(pack(model), model) > 0.01  # what would happen without the check
    with pytest.warns(UserWarning, match="differs from the model"):
        found = pack_checked(model, weights)
    text, total = by_decoding(found)
    with torch.no_grad():
        scored = armd.log_likelihood(model, text, armd.order.strided(10, 2)).double().sum()
    assert total == pytest.approx(float(scored), abs=1e-4)


class QkNormConfig(armd.ArmdConfig):
    """One new field."""

    model_type = "qk-norm"
    qk_norm: bool = True


class Normed:
    queries, keys_values = norm_queries, norm_keys


class NormedTwoStream(Normed, TwoStreamLayer): ...


class NormedLast(Normed, LastTwoStreamLayer): ...


class NormedCausal(Normed, CausalLayer): ...


@needs_c
def test_layers_of_another_class_are_run_by_torch() -> None:
    """As a project that imports armd does it: subclasses of its own."""
    model = case_of("random", 5, 1, **SIZE).model
    model.config = QkNormConfig(**{**model.config.to_diff_dict(), "model_type": "qk-norm"})
    ours = {TwoStreamLayer: NormedTwoStream, LastTwoStreamLayer: NormedLast}
    for layer in model.layers:
        layer.__class__ = ours.get(type(layer), NormedCausal)
    text, total = by_decoding(pack_checked(model))
    with torch.no_grad():
        scored = armd.log_likelihood(model, text, armd.order.strided(10, 2)).double().sum()
    assert total == pytest.approx(float(scored), abs=1e-4)


def test_an_order_of_your_own_is_scored_and_written_without_other_changes() -> None:
    """Middle first, two tokens a block: nothing but an Order."""
    model = case_of("random", 5, 1, **SIZE).model
    outward = armd.Order(torch.tensor([3, 4, 2, 5, 1, 6, 0, 7]), torch.arange(8) // 2)
    steps = [*armd.stream(model, length=8, order=outward)]
    assert [step.position[0].tolist() for step in steps] == outward.blocks()
    text = torch.zeros(1, 8, dtype=torch.long)
    for step in steps:
        text.scatter_(1, step.position, step.token)
    with torch.no_grad():
        exact = armd.log_likelihood(model, text, outward).double()
    torch.testing.assert_close(torch.cat([s.logp for s in steps], 1), exact, atol=1e-4, rtol=0)


def test_the_order_of_the_page_is_scored_and_written() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "changing.md"
    block = re.findall(r"^```python\n(import.*?)^```", page.read_text("utf-8"), re.M | re.S)
    assert len(block) == 1
    exec(block[0], {})
