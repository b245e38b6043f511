"""Counted by hand, training takes as much arithmetic as torch counts while it runs."""

from dataclasses import replace

import pytest
import torch
from small import case_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import armd
from armd.baselines import MODELS, model_class
from armd.bench.flops import forward_flops, train_flops
from armd.model.neighbor import needs_extra_row
from armd.train.presets import mini, with_model

LENGTH, BATCH, VOCABULARY = 64, 16, 300


@pytest.mark.parametrize("name", MODELS)
def test_by_hand_equals_by_counting(name: str) -> None:
    sizes = replace(mini().network, d_model=64, n_layers=2, query="prefix")
    config = with_model(replace(mini(), network=sizes), name).config(VOCABULARY)
    torch.manual_seed(0)
    model = model_class(name)(config)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens, labels=tokens).loss.backward()
    counted = counter.get_total_flops() / tokens.numel()
    # what is made again for the gradient is no part of ours: logits, where they are not kept
    again = {"sedd-absorb": 1, "sedd-uniform": 2, "diffusion-bert": 1, "plaid": 2}.get(name, 0)
    again *= config.d_model * VOCABULARY
    space = {"plaid": 2, "diffusion-lm": 1}.get(name, 0)
    again += 2 * space * getattr(config, "d_embedding", 0) * VOCABULARY
    assert train_flops(config, LENGTH, squares=True) == pytest.approx(counted - again, rel=0.05)


def test_what_a_row_may_not_see_does_not_count() -> None:
    config = mini().network.config(VOCABULARY)
    assert 3 * forward_flops(config, 128) == pytest.approx(128 * train_flops(config, 128))
    assert train_flops(config, 128) < train_flops(config, 128, squares=True)


def test_block_diffusion_is_about_twice_and_the_others_about_autoregressive() -> None:
    cost = {name: train_flops(with_model(mini(), name).config(1), 1024) for name in MODELS}
    assert 1.6 < cost["bd3lm-4"] / cost["ar"] < 2.0
    assert cost["mdlm"] > cost["ar"] == cost["sigma-gpt"]
    assert cost["ar"] == cost["armd"]  # left to right the neighbor query needs no second stream
    prefix = replace(mini().network, query="prefix").config(1)
    assert cost["ar"] < train_flops(prefix, 1024) < cost["xlnet"]


@pytest.mark.parametrize("kind", ["left to right", "strided", "shuffled", "random"])
def test_extra_rows_of_the_neighbor_query_count(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # attention that is counted
    sizes = {"query": "neighbor", "n_heads": 4, "n_kv_heads": 2, "d_model": 64, "n_layers": 2}
    case = case_of(kind, LENGTH, 1, batch=1, vocab_size=50, **sizes)
    extra = int(needs_extra_row(case.order).sum())
    assert (extra == 0) == (kind == "left to right")
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        armd.loss(case.model, case.tokens, case.order).backward()
    counted = counter.get_total_flops() / LENGTH
    ours = train_flops(case.model.config, LENGTH, squares=True, extra_rows=extra)
    assert ours == pytest.approx(counted, rel=0.05)
