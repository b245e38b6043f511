"""What the C files do is what torch does, and a row's bits are its own: not the batch's."""

import copy
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import armd
from armd.generation import forward as passes
from armd.generation import sampling
from armd.generation.kv_cache import Cache, Entry, make_cache
from armd.generation.plan import from_blanks
from armd.generation.ragged_layers import Crossing
from armd.generation.sampling import Sampling, draw
from armd.generation.state import Filling
from armd.native import library as native
from armd.native import packed as fast

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


def models_of(d_head: int, generator: torch.Generator, weights: str = "fp32", **shape: Any):
    """A model, of one layer unless said otherwise, and the same for the C files."""
    shape = {"vocab_size": 7, "n_layers": 1, "max_length": 200, "dropout": 0.0, **shape}
    config = armd.ArmdConfig(d_model=2 * d_head, n_heads=2, **shape)
    model = armd.ArmdLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    packed = fast.pack(model, weights)
    assert isinstance(packed.layers[0], fast.FastLayer) and packed.layers[0].fits
    return model, packed


@torch.no_grad()
def cache_of(model: armd.ArmdLM, batch: int, slots: int, generator: torch.Generator) -> Cache:
    cache = make_cache(model, batch=batch, length=slots - 2)
    for table in (*cache.keys, *cache.values):
        table.normal_(generator=generator)
    return cache


def turns_of(rows: int, d_head: int, generator: torch.Generator) -> torch.Tensor:
    angle = torch.rand(1, rows, d_head // 2, generator=generator) * 6
    return torch.stack([angle.cos(), angle.sin()], -1)


@settings(max_examples=40, deadline=None)
@given(
    d_head=st.sampled_from([8, 16, 24, 64, 72]),
    shapes=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(1, 9),
            st.integers(0, 9),
            st.integers(0, 100),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 2**31),
)
def test_a_layer_in_c_is_the_layer(d_head: int, shapes: list, seed: int) -> None:
    """The same rows go up, and the same keys and values stay, in texts of unlike caches."""
    g = torch.Generator().manual_seed(seed)
    model, packed = models_of(d_head, g)
    entries = []
    for batch, own, others, start, unlike in shapes:
        slots = start + own + 2
        cache = cache_of(model, batch, slots, g)
        entry = Entry(cache, own + others, own, start, start + own)
        if unlike:
            slot = torch.stack([torch.randperm(slots - 1, generator=g)[:own] for _ in range(batch)])
            limit = torch.randint(1, slots, (batch, own + others), generator=g)
            entry = replace(entry, slot=slot, limit=limit)
        entries.append(entry)
    count = sum(entry.batch * entry.rows for entry in entries)
    rows, turn = torch.randn(1, count, 2 * d_head, generator=g), turns_of(count, d_head, g)
    for last in (False, True):
        if last and not all(entry.rows > entry.own for entry in entries):
            continue
        both = []
        for side in (model, packed):
            own = [replace(e, cache=copy.deepcopy(e.cache)) for e in entries]
            with torch.no_grad():
                up = Crossing(own).through(side, range(1), rows, turn, last=last)
            both.append((up, [e.cache.keys[0] for e in own], [e.cache.values[0] for e in own]))
        (expected, *expected_stores), (up, *stores) = both
        limit = 2e-5 * float(expected.abs().max())
        torch.testing.assert_close(up, expected, rtol=1e-5, atol=limit)
        torch.testing.assert_close(stores, expected_stores, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    layers=st.tuples(st.integers(1, 3), st.integers(0, 2)),
    query=st.sampled_from(["prefix", "mean"]),
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 4)), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 2**31),
)
def test_a_pass_in_c_is_the_pass(layers: tuple, query: str, rows: list, seed: int) -> None:
    """Step by step, for texts alone and in batches, known tokens anywhere, unlike blocks."""
    g = torch.Generator().manual_seed(seed)
    two_stream, above = layers
    model, packed = models_of(
        8, g, n_layers=two_stream + above, n_two_stream=two_stream, query=query
    )
    assert isinstance(packed, fast.FastLM) and packed.whole
    n = int(torch.randint(1, 40, (), generator=g))
    canvases = []
    for batch in rows:
        chosen = [torch.Generator().manual_seed(number) for number, _ in batch]
        known = torch.stack([torch.rand(n, generator=own) < 0.5 for own in chosen])
        known[:, int(torch.randint(n, (), generator=g))] = False
        tokens = torch.randint(7, (len(batch), n), generator=g)
        order = armd.order.stack(
            [
                armd.order.infill(own, min(streams, int((~own).sum())))
                for own, (_, streams) in zip(known, batch, strict=True)
            ]
        )
        canvases.append(from_blanks(tokens, known, order=order))
    both = [
        [
            Filling(side, c, sampling=Sampling(), generator=torch.Generator().manual_seed(0))
            for c in canvases
        ]
        for side in (model, packed)
    ]
    while not all(filling.done for filling in both[0]):
        going = [i for i, filling in enumerate(both[0]) if not filling.done]
        expected, found = (
            passes.advance_together(side, [fillings[i].part() for i in going])
            for side, fillings in zip((model, packed), both, strict=True)
        )
        for i, theirs, ours in zip(going, expected, found, strict=True):
            one, other = both[0][i], both[1][i]
            real = (one.at < n)[..., None]
            theirs, ours = one.asked(theirs), other.asked(ours)
            torch.testing.assert_close(ours * real, theirs * real, rtol=1e-4, atol=1e-4)
            logits = model.logits(theirs)
            one.take(logits), other.take(logits)
    for one, other in zip(*both, strict=True):
        states = one.cache.mark.state, other.cache.mark.state
        torch.testing.assert_close(*states, rtol=1e-4, atol=1e-4)
        assert one.cache.mark.context == other.cache.mark.context


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_row_has_the_same_bits_alone_and_among_others(weights: str) -> None:
    g = torch.Generator().manual_seed(1)
    model, packed = models_of(64, g, weights)
    batch, slots = 23, 80
    cache = cache_of(model, batch, slots, g)
    rows, turn = torch.randn(1, batch, 128, generator=g), turns_of(batch, 64, g)
    limit = torch.randint(1, slots, (batch, 1), generator=g)
    entry = Entry(cache, 1, 1, 0, slots, slot=limit - 1, limit=limit)
    single = [
        replace(cache, keys=[cache.keys[0][i : i + 1]], values=[cache.values[0][i : i + 1]])
        for i in range(batch)
    ]
    with torch.no_grad():
        together = Crossing([entry]).through(packed, range(1), rows, turn)
        for i, own in enumerate(single):
            length, one = int(limit[i]), slice(i, i + 1)
            crossing = Crossing([Entry(own, 1, 1, length - 1, length)])
            alone = crossing.through(packed, range(1), rows[:, one], turn[:, one])
            assert torch.equal(alone[0, 0], together[0, i])


def share() -> st.SearchStrategy[float | None]:
    return st.one_of(st.none(), st.floats(0.001, 1))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5000),
    st.builds(
        Sampling, st.floats(0.2, 3), st.one_of(st.none(), st.integers(1, 60)), share(), share()
    )
    | st.just(Sampling(0.0)),
    st.floats(0.01, 30),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_token_drawn_in_c_is_the_one_drawn_in_torch(
    rows: int, vocabulary: int, chosen: Sampling, spread: float, forced: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 2, vocabulary, generator=g) * spread
    logits[torch.rand(logits.shape, generator=g) < 0.3] = -torch.inf
    logits[..., 0] = 0.0
    uniform = torch.rand(rows, 2, dtype=torch.float64, generator=g)
    given_ids = torch.randint(-1, vocabulary, (rows, 2), generator=g) if forced else None
    assert sampling._natively(logits, chosen)
    token, logp = draw(logits, uniform, chosen, None, given_ids)
    expected, expected_logp = draw(logits.double(), uniform, chosen, None, given_ids)
    assert torch.equal(token, expected)
    torch.testing.assert_close(logp, expected_logp, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.4}])
def test_of_equal_tokens_just_as_many_stay_as_the_filter_says(filters: dict) -> None:
    """All weights stand in one bucket there, and none is larger than another."""
    logits, draws = torch.zeros(1, 1, 6), torch.arange(60) / 60
    uniform = draws.double()[None]
    token, _ = draw(logits.expand(1, 60, 6), uniform, Sampling(**filters))
    stay = 2 if len(filters) == 2 else 3  # 0.4 of five, or half of six
    assert token[0].tolist() == sorted(list(range(stay)) * (60 // stay))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in C, and in torch
@pytest.mark.parametrize("broken", [torch.nan, -torch.inf, torch.inf])
def test_logits_that_are_no_numbers_are_said_to_be_so(broken: float, dtype: torch.dtype) -> None:
    logits = torch.full((1, 1, 3000), broken, dtype=dtype)
    uniform = torch.full((1, 1), 0.5, dtype=torch.float64)
    for chosen in (Sampling(), Sampling(0.0), Sampling(0.7, top_k=5), Sampling(1, top_p=0.9)):
        with pytest.raises(armd.ArmdError, match="no numbers"):
            draw(logits, uniform, chosen)


def test_threads_that_stand_behind_a_thread_go_when_it_says_so() -> None:
    script = """
import os, time, torch
from armd.native import packed as fast
from armd.native import library as native
linear = fast.SkinnyLinear(torch.randn(64, 64), int8=False)
def count():
    time.sleep(0.5)  # what was told to end may take a moment
    return len(os.listdir("/proc/self/task"))
def use():
    linear(torch.randn(2, 64))
use()
native.release_threads()
alone = count()
use()
assert count() > alone, "nobody came"
native.release_threads()
assert count() == alone, "somebody stayed"
"""
    several = {**os.environ, "OMP_NUM_THREADS": "3", "OMP_DYNAMIC": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=several, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
