"""Counted by hand, training takes as much arithmetic as torch counts while it runs."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from armd.baselines import MODELS, model_class
from armd.bench.flops import forward_flops, train_flops
from armd.train.presets import mini, with_model

LENGTH, BATCH, VOCABULARY = 64, 16, 300


@pytest.mark.parametrize("name", MODELS)
def test_by_hand_equals_by_counting(name: str) -> None:
    sizes = replace(mini().network, d_model=64, n_layers=2)
    config = with_model(replace(mini(), network=sizes), name).config(VOCABULARY)
    torch.manual_seed(0)
    model = model_class(name)(config)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens, labels=tokens).loss.backward()
    counted = counter.get_total_flops() / tokens.numel()
    # what is made again for the gradient is no part of ours: logits, where they are not kept
    again = 2 * config.d_model * VOCABULARY if name.startswith("sedd") else 0
    assert train_flops(config, LENGTH, squares=True) == pytest.approx(counted - again, rel=0.05)


def test_what_a_row_may_not_see_does_not_count() -> None:
    config = mini().network.config(VOCABULARY)
    assert 3 * forward_flops(config, 128) == pytest.approx(128 * train_flops(config, 128))
    assert train_flops(config, 128) < train_flops(config, 128, squares=True)


def test_block_diffusion_is_about_twice_and_the_others_about_autoregressive() -> None:
    cost = {name: train_flops(with_model(mini(), name).config(1), 1024) for name in MODELS}
    assert 1.6 < cost["bd3lm-4"] / cost["ar"] < 2.0
    assert cost["mdlm"] > cost["ar"] == cost["sigma-gpt"]
    assert cost["ar"] < cost["armd"] < cost["xlnet"]
