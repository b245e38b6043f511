"""Every order is a permutation cut into blocks, each kind with its own law; bad input says so."""

from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import KINDS, order_of

import armd
from armd.errors import ArmdError
from armd.order import (
    Order,
    alpha,
    infill,
    left_to_right,
    masking,
    random,
    shuffled,
    stack,
    strided,
)


@settings(max_examples=100, deadline=None)
@given(kind=st.sampled_from(KINDS), n=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_every_order_is_a_permutation_in_blocks(kind: str, n: int, seed: int) -> None:
    order = order_of(kind, n, torch.Generator().manual_seed(seed))
    rows = order.rows(2)
    natural = torch.arange(n).expand_as(rows.position)
    assert torch.equal(rows.position.sort(-1).values, natural)
    assert (rows.block.diff(dim=-1) >= 0).all() and (rows.block >= 0).all()
    assert len(order) == n
    assert order.single_token_blocks == bool((rows.block.diff(dim=-1) > 0).all())
    assert order.is_left_to_right == (
        order.single_token_blocks and torch.equal(rows.position, natural)
    )
    assert torch.equal(rows.position.gather(-1, rows.inverse()), natural)
    for row in range(order.batch or 0):
        assert sorted(j for block in order[row].blocks() for j in block) == list(range(n))


def test_left_to_right() -> None:
    order = left_to_right(5)
    assert order.is_left_to_right and order.single_token_blocks
    assert order.blocks() == [[0], [1], [2], [3], [4]]


def test_strided_example_of_the_paper() -> None:
    """N = 8, S = 2: heads 1 and 5 one by one, then (2, 6) (3, 7) (4, 8), counted from 1."""
    order = strided(8, 2)
    assert (order.position + 1).tolist() == [1, 5, 2, 6, 3, 7, 4, 8]
    assert order.blocks() == [[0], [4], [1, 5], [2, 6], [3, 7]]


@given(n=st.integers(1, 200), data=st.data())
def test_strided_takes_s_plus_n_over_s_minus_1_calls(n: int, data: st.DataObject) -> None:
    streams = data.draw(st.integers(1, n))
    blocks = strided(n, streams).blocks()
    assert len(blocks) == streams + ceil(n / streams) - 1
    heads = [block[0] for block in blocks[:streams]]
    assert all(len(block) == 1 for block in blocks[:streams]) and heads == sorted(heads)
    lengths = [end - start for start, end in zip(heads, [*heads[1:], n], strict=True)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1
    for depth, block in enumerate(blocks[streams:], start=1):
        assert block == [h + depth for h, size in zip(heads, lengths, strict=True) if depth < size]


def test_one_stream_is_left_to_right() -> None:
    assert (
        strided(9, 1).is_left_to_right and infill(torch.zeros(9, dtype=torch.bool)).is_left_to_right
    )


@given(n=st.integers(1, 60), data=st.data())
def test_shuffled_moves_at_most_rho_tokens(n: int, data: st.DataObject) -> None:
    rho, seed = data.draw(st.integers(0, n)), data.draw(st.integers(0, 2**31))
    order = shuffled(n, rho, generator=torch.Generator().manual_seed(seed))
    assert int((order.position != torch.arange(n)).sum()) <= rho
    assert order.single_token_blocks


@pytest.mark.parametrize("draw", [random, lambda n, generator: shuffled(n, n, generator=generator)])
def test_random_orders_are_equally_likely(draw) -> None:
    generator = torch.Generator().manual_seed(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        key = tuple(draw(3, generator=generator).position.tolist())
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 20.5  # p = 0.001, 5 dof


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_masking_follows_its_schedule(steps: int, schedule: str) -> None:
    """A token is masked at step t with probability alpha^(t-1) - alpha^t, and generated in block
    steps - t."""
    n = 40_000
    order = masking(n, steps, schedule, generator=torch.Generator().manual_seed(1))
    kept = alpha(steps, schedule)
    assert kept[0] == 1 and kept[-1] == 0 and (kept.diff() < 0).all()
    expected = n * (kept[:-1] - kept[1:]).flip(0)
    counts = torch.bincount(order.block, minlength=steps)
    assert len(counts) == steps
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 22.5  # p = 0.001 with 6 degrees of freedom
    where = order.block[order.inverse()].double()  # positions know nothing of their blocks
    assert abs(torch.corrcoef(torch.stack([where, torch.arange(n)]))[0, 1].nan_to_num()) < 0.02


def test_masking_leaves_blocks_empty_when_nothing_is_unmasked() -> None:
    order = masking(3, 50, generator=torch.Generator().manual_seed(0))
    assert int(order.block.max()) < 50 and len(order.blocks()) <= 3


@given(seed=st.integers(0, 2**31), n=st.integers(1, 30))
def test_infill_takes_what_is_known_first(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    known = torch.rand(n, generator=generator) < 0.5
    blanks = (~known).nonzero().flatten()
    streams = int(torch.randint(1, max(1, len(blanks)) + 1, (), generator=generator))
    order = infill(known, streams=streams)
    given_count = n - len(blanks)
    assert order.position[:given_count].tolist() == known.nonzero().flatten().tolist()
    if len(blanks):
        inner = strided(len(blanks), streams)
        assert torch.equal(order.position[given_count:], blanks[inner.position])
        assert torch.equal(order.block[given_count:] - given_count, inner.block)


def test_orders_stack_and_fit_their_texts() -> None:
    orders = [left_to_right(6), strided(6, 2), random(6)]
    batch = stack(orders)
    assert batch.batch == 3 and not batch.single_token_blocks and not batch.is_left_to_right
    for row, order in enumerate(orders):
        assert torch.equal(batch[row].position, order.position)
        assert torch.equal(batch[row].block, order.block)
    assert stack(orders[:1]).is_left_to_right and stack([orders[0], orders[2]]).single_token_blocks
    assert batch.rows(3) is batch
    assert orders[1].batch is None and orders[1].rows(5).position.shape == (1, 6)
    two = infill(torch.tensor([[True, False, False], [False, False, True]]))
    assert two[1].position.tolist() == [2, 0, 1]


def test_orders_move_between_devices() -> None:
    moved = strided(6, 2).to("meta")
    assert (
        moved.position.device.type == moved.block.device.type == "meta"
        and not moved.single_token_blocks
    )


def test_orders_print_their_blocks() -> None:
    assert repr(strided(8, 2)) == "Order(8 tokens in 5 blocks: 0 | 4 | 1 5 | 2 6 | 3 7)"
    assert len(repr(left_to_right(10_000))) < 150
    assert repr(stack([strided(4, 2)] * 3)).startswith("Order(3 rows of 4 tokens; first: Order(4")


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


BAD = {
    "permutation": lambda: Order(longs(0, 0, 2), longs(0, 1, 2)),
    "permutation of 0..2": lambda: Order(longs(1, 2, 3), longs(0, 1, 2)),
    "never decrease": lambda: Order(longs(0, 1, 2), longs(0, 2, 1)),
    "start at 0": lambda: Order(longs(0, 1, 2), longs(-1, 0, 1)),
    "one shape": lambda: Order(longs(0, 1, 2), longs(0, 1)),
    "at least 1": lambda: Order(longs(), longs()),
    r"\.long\(\)": lambda: Order(torch.arange(3.0), longs(0, 1, 2)),
    "at least one token": lambda: left_to_right(0),
    "at least one token, not -1": lambda: random(-1),
    "rho 9 must be between 0 and the 8": lambda: shuffled(8, 9),
    "rho -1": lambda: shuffled(8, -1),
    "streams 9 must be between 1 and the 8": lambda: strided(8, 9),
    "streams 0": lambda: strided(8, 0),
    "at least 1 step": lambda: masking(8, 0),
    "'linear' or 'cosine'": lambda: masking(8, 4, "square"),
    "bool tensor": lambda: infill(longs(0, 1)),
    "streams 3 must be between 1 and the 2": lambda: infill(torch.zeros(2).bool(), streams=3),
    "one length": lambda: stack([left_to_right(3), left_to_right(4)]),
    "at least one, ": lambda: stack([]),
    "2 rows does not fit 3 texts": lambda: stack([left_to_right(3)] * 2).rows(3),
    "this order has one row": lambda: left_to_right(3)[0],
    r"order\[0\]\.blocks": lambda: stack([left_to_right(3)] * 2).blocks(),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_orders_say_what_to_mend(message: str, unchecked: None) -> None:
    with pytest.raises(ArmdError, match=message) as caught:
        BAD[message]()
    assert "\n" not in str(caught.value)


CONFIG = {"vocab_size": 7, "d_model": 8, "n_layers": 2, "n_heads": 1, "max_length": 6}
BAD_CONFIG = {
    "between 1 and n_layers 2": {"n_two_stream": 0},
    "n_two_stream 3": {"n_two_stream": 3},
    "divisible by twice n_heads 3": {"n_heads": 3},
    "vocab_size 0": {"vocab_size": 0},
    "no query 'max'; use one of prefix, mean, shift": {"query": "max"},
    "dropout 1.0": {"dropout": 1.0},
}


@pytest.mark.parametrize("message", BAD_CONFIG)
def test_bad_configs_say_what_to_mend(message: str) -> None:
    with pytest.raises(ArmdError, match=message):
        armd.ArmdConfig(**CONFIG | BAD_CONFIG[message])


BAD_INPUT = {
    "token 7 is outside the vocabulary of 7": (longs(0, 7, 2)[None], left_to_right(3)),
    "token -1": (longs(0, -1, 2)[None], left_to_right(3)),
    "order is for 4 tokens, the text has 3": (longs(0, 1, 2)[None], left_to_right(4)),
    "passes max_length 6": (torch.zeros(1, 7).long(), left_to_right(7)),
    "2 rows does not fit 3 texts": (torch.zeros(3, 4).long(), stack([left_to_right(4)] * 2)),
    r"integers \(batch, n\)": (torch.zeros(3).long(), left_to_right(3)),
    r"must be integers": (torch.zeros(1, 3), left_to_right(3)),
}


@pytest.mark.parametrize("message", BAD_INPUT)
def test_bad_texts_say_what_to_mend(message: str, unchecked: None) -> None:
    tokens, order = BAD_INPUT[message]
    with pytest.raises(ArmdError, match=message):
        armd.ArmdLM(armd.ArmdConfig(**CONFIG))(tokens, order=order)
