"""The nearest relatives, XLNet and sigma-GPT, obey our model's laws: no token sees itself, all
probabilities sum to one, and the cache is exact."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import KINDS, Case, order_of
from test_cached_equals_full import run as cached_equals_full
from test_strict_causality import assert_strict

import armd
from armd.baselines import config_of, model_class
from armd.errors import ArmdError
from armd.native.packed import pack
from armd.train.recipe import Network

SINGLES = ("left to right", "shuffled", "random")
PAIRS = [("xlnet", kind) for kind in KINDS] + [("sigma-gpt", kind) for kind in SINGLES]


def relative_of(name: str, kind: str, n: int, seed: int, *, double: bool, vocabulary: int) -> Case:
    """A model with weights large enough for every part to matter, two texts and an order."""
    generator = torch.Generator().manual_seed(seed)
    query = "mean" if name == "xlnet" else "shift"
    sizes = {"d_model": 16, "n_layers": 3, "n_two_stream": 3, "n_heads": 2, "max_length": 16}
    config = config_of(name, **sizes, vocab_size=vocabulary, query=query, dropout=0.0)
    model = model_class(name)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(0.3 * noise if weight.dim() > 1 else 1 + 0.1 * noise)
    tokens = torch.randint(vocabulary, (2, n), generator=generator)
    order = order_of(kind, n, generator)
    return Case(model.double() if double else model, tokens, order, generator)


@pytest.mark.parametrize("name, kind", PAIRS)
def test_no_block_sees_itself(name: str, kind: str) -> None:
    assert_strict(relative_of(name, kind, 8, 3, double=True, vocabulary=7))


@pytest.mark.parametrize("name, kind", [pair for pair in PAIRS if pair[1] != "rows"])
def test_probabilities_of_all_texts_sum_to_one(name: str, kind: str) -> None:
    case = relative_of(name, kind, 4, 1, double=True, vocabulary=3)
    every = torch.tensor(list(product(range(3), repeat=4)))
    with torch.no_grad():
        logp = armd.log_likelihood(case.model, every, case.order).sum(1)
    assert logp.exp().min() != logp.exp().max()
    torch.testing.assert_close(logp.exp().sum().item(), 1.0, rtol=1e-12, atol=1e-12)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(PAIRS), st.integers(1, 9), st.integers(0, 2**31), st.floats(0, 1))
def test_cached_equals_full(pair: tuple[str, str], n: int, seed: int, share: float) -> None:
    """Blanks anywhere; what is known in front is one prefill, what is not is put in as drawn."""
    case = relative_of(*pair, n, seed, double=True, vocabulary=7)
    known = torch.rand(case.tokens.shape, generator=case.generator) < share
    known[0, 0] = False
    cached_equals_full(case, known=known)


@pytest.mark.parametrize("name", ["xlnet", "sigma-gpt"])
def test_prompts_of_unlike_lengths_enter_together(name: str) -> None:
    case = relative_of(name, "left to right", 9, 5, double=True, vocabulary=7)
    known = torch.arange(9) < torch.tensor([[2], [6]])
    cached_equals_full(case, known=known, order=armd.order.infill(known))


def test_sigma_gpt_writes_one_token_at_a_time() -> None:
    case = relative_of("sigma-gpt", "left to right", 8, 0, double=False, vocabulary=7)
    with pytest.raises(ArmdError, match="one token at a time"):
        case.model(case.tokens, order=armd.order.strided(8, 2))
    with pytest.raises(ArmdError, match="one token at a time"):
        armd.generate(case.model, length=8, streams=2)


@pytest.mark.parametrize("name", ["xlnet", "sigma-gpt"])
def test_packed_for_decoding_it_is_the_same_model(name: str) -> None:
    case = relative_of(name, "random", 8, 2, double=False, vocabulary=7)
    with torch.no_grad():
        ours, packed = (
            m(case.tokens, order=case.order).logits for m in (case.model, pack(case.model))
        )
    torch.testing.assert_close(ours, packed, rtol=1e-4, atol=1e-4)


def test_the_first_weights_are_small_and_of_unit_gain() -> None:
    """Modules that a subclass adds are not left with what they happened to hold."""
    network = Network(d_model=64, n_layers=2, n_two_stream=2, n_heads=2, length=16, query="mean")
    start = model_class("xlnet")(network.config(11, "xlnet")).start
    assert 0.01 < float(start.detach().std()) < 0.03
