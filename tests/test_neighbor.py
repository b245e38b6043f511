"""query="neighbor": left to right an ordinary autoregressive model, and rows that are one row are
taken once."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from small import KINDS, Case, case_of, cases, order_of
from test_reference import assert_equal_to_reference

import armd
from armd.errors import ArmdError
from armd.model.layers import right_keys
from armd.model.neighbor import extra_rows, needs_extra_row

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
REAL: dict[str, Any] = {
    "n_kv_heads": 1,
    "d_head": 6,
    "qkv_bias": True,
    "tie_word_embeddings": False,
    "rope_llama3": LLAMA3,
}
"""What pretrained models have."""


def as_query(model: armd.ArmdLM, query: str, **changes: Any) -> armd.ArmdLM:
    """The same weights with another query, as far as they fit."""
    config = armd.ArmdConfig(**{**model.config.to_dict(), "query": query, **changes})
    other = armd.ArmdLM(config).to(model.dtype).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    return other


@pytest.mark.parametrize("n", [1, 2, 33])
@pytest.mark.parametrize(
    "features",
    [{}, REAL | {"right_bias": True, "right_offset": 5, "adapter_rank": 3}],
    ids=["plain", "real"],
)
def test_left_to_right_it_is_the_shifted_query_bit_for_bit(
    n: int, features: dict[str, Any]
) -> None:
    case = case_of("left to right", n, n, query="neighbor", **features)
    shift = as_query(case.model, "shift")
    again = as_query(shift, "neighbor", n_two_stream=99)
    with torch.no_grad():
        wanted = shift(case.tokens).logits
        assert torch.equal(case.model(case.tokens, order=case.order).logits, wanted)
        assert torch.equal(again(case.tokens).logits, wanted)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(case=cases(double=True, queries=("neighbor",)))
def test_shared_rows_equal_all_rows(case: Case) -> None:
    """The reference has all rows in both streams and shares none; values and gradients."""
    assert_equal_to_reference(case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "features",
    [
        {"right_bias": True},
        REAL,
        REAL | {"right_bias": True},
        {"right_offset": 16},
        {"adapter_rank": 2},
        REAL | {"right_bias": True, "right_offset": 4, "adapter_rank": 3},
    ],
    ids=["bias", "real", "both", "offset", "adapter", "all"],
)
def test_shared_rows_equal_all_rows_in_networks_of_all_kinds(
    kind: str, features: dict[str, Any]
) -> None:
    assert_equal_to_reference(case_of(kind, 11, 2, double=True, query="neighbor", **features))


def test_a_batch_of_unlike_orders_equals_each_alone() -> None:
    """Texts with few extra rows are filled up, and nothing reads what fills them."""
    case = case_of(
        "left to right",
        12,
        5,
        double=True,
        batch=4,
        query="neighbor",
        right_bias=True,
        right_offset=7,
    )
    orders = [
        armd.order.left_to_right(12),
        armd.order.strided(12, 3),
        armd.order.random(12, generator=case.generator),
        armd.order.shuffled(12, 4, generator=case.generator),
    ]
    together = case.model(case.tokens, order=armd.order.stack(orders)).logits
    for row, order in enumerate(orders):
        alone = case.model(case.tokens[row : row + 1], order=order).logits[0]
        torch.testing.assert_close(together[row], alone, rtol=1e-10, atol=1e-10)


def count(order: armd.Order) -> int:
    return int(needs_extra_row(order).sum())


def test_how_many_extra_rows_an_order_needs() -> None:
    assert extra_rows(armd.order.left_to_right(50).rows(1)) is None
    assert count(armd.order.left_to_right(50)) == 0
    for streams in (1, 2, 4, 7, 16):
        # heads of streams, whose neighbor is unknown, and the tokens behind heads but the last,
        # whose neighbor was drawn before other heads
        assert count(armd.order.strided(100, streams)) == 2 * (streams - 1)
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        assert count(armd.order.shuffled(400, 20, generator=generator)) <= 2 * 20
        moved = armd.order.shuffled(400, 20, how="move", generator=generator)
        assert count(moved) <= 3 * 20
        order = order_of("rows", 12, generator, batch=3).rows(3)
        extra = extra_rows(order)
        assert (extra.count if extra else 0) == int(needs_extra_row(order).sum(1).max())


def test_a_bias_to_the_right_counts_in_every_order_but_left_to_right() -> None:
    for kind, differs in (("left to right", False), ("strided", True), ("random", True)):
        case = case_of(kind, 16, 3, query="neighbor", right_bias=True)
        before = case.model(case.tokens, order=case.order).logits
        with torch.no_grad():
            for layer in case.model.layers:
                layer.right_bias -= 3  # type: ignore[operator]
        after = case.model(case.tokens, order=case.order).logits
        assert torch.equal(before, after) != differs


def test_a_key_is_moved_as_often_as_it_takes() -> None:
    config = armd.ArmdConfig.named("tiny", query="neighbor", right_offset=3, max_length=2000)
    found = right_keys(torch.tensor([[5]]), torch.tensor([[0, 5, 6, 8, 9, 2000]]), config)
    assert found is not None and found.turns is not None
    assert found.times.tolist() == [[[0, 0, 1, 1, 2, 665]]] and len(found.turns) == 665


def test_keys_on_the_right_are_read_as_text_that_is_before() -> None:
    """The last n of 2 n tokens, known before the first n and moved to the left by 2 n, are for
    those what n tokens before them would be. (BOS, which stands before both, is made nothing.)"""
    n, model = 6, case_of("random", 12, 3, double=True, query="neighbor", right_offset=12).model
    tokens = torch.randint(7, (1, 2 * n), generator=torch.Generator().manual_seed(1))
    later = armd.Order(torch.arange(2 * n).roll(n), torch.arange(2 * n))
    with torch.no_grad():
        model.bos.zero_()
        ours = model(tokens, order=later).logits[0, n + 1 :]
        swapped = model(tokens.roll(n, 1)).logits[0, n + 1 :]
    assert ours.shape == swapped.shape
    torch.testing.assert_close(ours, swapped)


@pytest.mark.parametrize("kind", ["strided", "random"])
def test_a_bias_far_below_zero_hides_what_is_to_the_right(kind: str) -> None:
    case = case_of(kind, 12, 4, query="neighbor", right_bias=True, n_layers=1)
    position, block = case.order.position, case.order.block
    with torch.no_grad():
        case.model.layers[0].right_bias.fill_(-1e4)  # type: ignore[union-attr]
        case.model.gate.zero_()  # the aggregation would still tell
        before = case.model(case.tokens, order=case.order).logits
        for k in range(len(position)):
            changed = case.tokens.clone()
            changed[:, position[k]] = (changed[:, position[k]] + 1) % case.model.config.vocab_size
            after = case.model(changed, order=case.order).logits
            blind = (block <= block[k]) | (position <= position[k])
            assert torch.equal(after[:, blind], before[:, blind])
            assert (after[:, ~blind] != before[:, ~blind]).any(-1).all()


@pytest.mark.parametrize("query", ["neighbor", "prefix"])
def test_grouped_heads_equal_repeated_ones(query: str) -> None:
    case = case_of("strided", 13, 6, double=True, query=query, n_heads=4, n_kv_heads=2)
    config = armd.ArmdConfig(**{**case.model.config.to_dict(), "n_kv_heads": 4})
    wide = armd.ArmdLM(config).double().eval()
    weights = case.model.state_dict()
    for name, value in weights.items():
        if name.endswith("key_value.weight"):
            heads = value.unflatten(0, (2, 2, -1)).repeat_interleave(2, 1)
            weights[name] = heads.flatten(0, 2)
    wide.load_state_dict(weights)
    theirs = wide(case.tokens, order=case.order).logits
    ours = case.model(case.tokens, order=case.order).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["left to right", "infill", "strided", "rows"])
def test_every_weight_has_a_gradient_in_every_order(kind: str) -> None:
    """Processes that train together hold unlike orders, and add up gradients of all weights."""
    case = case_of(kind, 12, 1, query="neighbor")
    armd.loss(case.model.train(), case.tokens, case.order).backward()
    assert all(weight.grad is not None for weight in case.model.parameters())


@pytest.mark.parametrize("kind", ["left to right", "strided", "rows"])
def test_checkpointed_activations_give_the_same_gradients(kind: str) -> None:
    gradients = []
    for again in (False, True):
        case = case_of(kind, 12, 1, query="neighbor", right_bias=True)
        case.model.gradient_checkpointing = again
        armd.loss(case.model.train(), case.tokens, case.order).backward()
        gradients.append([weight.grad for weight in case.model.parameters()])
    for plain, other in zip(*gradients, strict=True):
        assert (plain is None and other is None) or torch.equal(plain, other)


@pytest.mark.parametrize("kind", ["strided", "rows"])
def test_devices_without_our_kernel_give_the_same_gradients(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While compiling, too, masks are written out and torch's own attention takes them."""
    gradients = []
    for plain in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda plain=plain: plain)
        more = {"right_bias": True, "right_offset": 5, "n_kv_heads": 1, "adapter_rank": 2}
        case = case_of(kind, 12, 3, double=True, query="neighbor", **more)
        loss = armd.loss(case.model, case.tokens, case.order)
        gradients.append(torch.autograd.grad(loss, list(case.model.layers.parameters())))
    for ours, other in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_is_refused() -> None:
    for fields, said in (
        ({"n_heads": 12, "n_kv_heads": 5}, "n_kv_heads"),
        ({"d_head": 7}, "even"),
        ({"right_bias": True}, "right_bias"),
        ({"right_offset": 8}, "right_offset"),
        ({"right_offset": 1025, "query": "neighbor"}, "right_offset"),
        ({"adapter_rank": 4}, "adapter_rank"),
        ({"adapter_rank": -1, "query": "neighbor"}, "adapter_rank"),
        ({"rope_llama3": {"factor": 8.0}}, "low_freq_factor"),
        ({"d_model": 50}, "d_head"),
    ):
        with pytest.raises(ArmdError, match=said):
            armd.ArmdConfig(**fields)


def test_configurations_and_weights_of_before_are_as_they_were() -> None:
    new = ("n_kv_heads", "d_head", "qkv_bias", "right_bias", "rope_llama3", "tie_word_embeddings")
    new += ("right_offset", "adapter_rank")
    config = case_of("random", 5, 1).model.config
    old = {name: value for name, value in config.to_dict().items() if name not in new}
    assert armd.ArmdConfig.from_dict(old).to_dict() == config.to_dict()
    weights = armd.ArmdLM(config).state_dict()
    layer = {name.split(".", 2)[-1] for name in weights if name.startswith("layers.")}
    assert layer == {
        *("attention_norm.weight", "query.weight", "key_value.weight", "out.weight"),
        *("mlp_norm.weight", "gate_up.weight", "down.weight"),
    }
    assert {name for name in weights if not name.startswith("layers.")} == {
        *("embedding.weight", "bos", "norm.weight", "query_norm.weight"),
        *("position_code.inner.weight", "position_code.outer.weight"),
    }
