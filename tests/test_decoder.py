"""A plan in plain numbers is an order; the C backend and torch take the same steps; and what a
sequence gets does not depend on what is decoded beside it, or was decoded before it."""

import copy
from functools import partial

import pytest
import torch
from eval_models import tiny_armd
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small import case_of, order_of

import armd
from armd.generation import torch_backend
from armd.generation.api import decode, make_sequences
from armd.generation.decoder import Decoder
from armd.generation.kv_cache import KVCache, make_cache
from armd.generation.native_backend import NativeDecoder
from armd.generation.plan import DecodePlan, completing, from_blanks, from_prompts
from armd.generation.sequence import Sequence
from armd.model.sampling import Sampling
from armd.native import library as native
from armd.native import packed as fast
from armd.runtime.seeds import seeded

compiled = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 2), st.integers(1, 5))
def test_a_plan_of_blanks_is_the_order_that_completes_them(
    known: list[bool], kind: int, size: int
) -> None:
    blanks = known.count(False)
    assume(blanks)
    orders = [
        armd.order.strided(blanks, min(size, blanks)),
        armd.order.random(blanks, generator=seeded(size)),
        armd.order.masking(blanks, size, generator=seeded(size)),
    ]
    tokens = torch.randint(9, (len(known),), generator=seeded(kind))
    order, there = orders[kind], torch.tensor(known)
    whole = armd.order.completing(there, order)
    (expected,) = from_blanks(tokens[None], there[None], order=whole)
    plan = completing(tokens.tolist(), known, order.position.tolist(), order.block.tolist())
    assert plan == expected
    assert plan.steps == len(order.blocks()) and plan.step_ends[0] == known.count(True)
    assert plan.order().position.equal(whole.position) and plan.order().block.equal(whole.block)
    assert [plan.position[at] for at in plan.rank] == list(range(len(known)))


def plans_for(rows: list[int], kind: str, n: int, g: torch.Generator) -> list[DecodePlan]:
    """Sequences of unlike prompts, blanks and blocks."""
    known = torch.rand(len(rows), n, generator=g) < 0.4
    if kind == "prompts":
        known = torch.arange(n) < torch.randint(n - 1, (len(rows), 1), generator=g)
    known[0, -1] = False  # others may be known altogether
    known[-1] |= len(rows) > 2

    def order(own: torch.Tensor, size: int) -> armd.Order:
        count = int((~own).sum())
        if kind == "anywhere":  # known tokens between and after blanks
            return order_of("written down", n, g)
        if count and kind == "masking":
            return armd.order.completing(own, armd.order.masking(count, 3, generator=g))
        return armd.order.infill(own, max(1, min(size, count)))

    orders = [order(own, size) for own, size in zip(known, rows, strict=True)]
    tokens = torch.randint(7, (len(rows), n), generator=g)
    return from_blanks(tokens, known, order=armd.order.stack(orders))


def model_of(d_head: int, g: torch.Generator, **shape) -> armd.ArmdLM:
    shape = {"vocab_size": 7, "max_length": 64, "dropout": 0.0, **shape}
    model = armd.ArmdLM(armd.ArmdConfig(d_model=2 * d_head, n_heads=2, **shape)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=g) * 0.2)
    return model


def make(model: armd.ArmdLM, plans: list[DecodePlan], **options) -> list[Sequence]:
    options = {"sampling": Sampling(), "generator": torch.Generator().manual_seed(1), **options}
    return make_sequences(model, plans, **options)


@compiled
@settings(max_examples=20, deadline=None)
@given(
    layers=st.tuples(st.integers(1, 3), st.integers(0, 2)),
    d_head=st.sampled_from([8, 16, 24, 64, 72]),
    query=st.sampled_from(["prefix", "mean"]),
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    kind=st.sampled_from(["strided", "masking", "prompts", "anywhere"]),
    seed=st.integers(0, 2**31),
)
def test_a_step_in_c_is_the_step_in_torch(
    layers: tuple[int, int], d_head: int, query: str, rows: list[int], kind: str, seed: int
) -> None:
    """Step by step the same log-probabilities, and the same keys, values and prefix states stay."""
    g = torch.Generator().manual_seed(seed)
    shape = {"n_layers": sum(layers), "n_two_stream": layers[0], "query": query}
    model = model_of(d_head, g, **shape)
    packed = fast.pack(model)
    assert Decoder.is_native(packed) and not Decoder.is_native(model)
    plans = plans_for(rows, kind, int(torch.randint(6, 40, (), generator=g)), g)
    ours, theirs = make(packed, plans), make(model, plans)
    with torch.no_grad():
        while going := [i for i, sequence in enumerate(ours) if not sequence.done]:
            for side, sequences in ((packed, ours), (model, theirs)):
                Decoder(side).steps([sequences[i] for i in going])
            for i in going:
                one, other = ours[i], theirs[i]
                at = one.plan.position[slice(*one.plan.step_ends[one.step - 1 : one.step + 1])]
                found, expected = ([s.logp[p] for p in at] for s in (one, other))
                assert found == pytest.approx(expected, abs=2e-3 if d_head > 32 else 5e-4)
                other.tokens[:] = one.tokens  # whatever rounding made of a draw
    for one, other in zip(ours, theirs, strict=True):
        states = [s.cache.prefix_state[s.row] for s in (one, other)]
        torch.testing.assert_close(*states, rtol=1e-4, atol=1e-4)
        for kind_of in ("keys", "values"):
            sides = ([layer[s.row] for layer in getattr(s.cache, kind_of)] for s in (one, other))
            for found, expected in zip(*sides, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@compiled
@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    kind=st.sampled_from(["strided", "masking", "prompts"]),
    way=st.sampled_from([{}, {"top_p": 0.8}, {"temperature": 0}, {"top_k": 3, "min_p": 0.01}]),
    eos=st.sampled_from([None, 3]),
    part=st.integers(1, 12),
    seed=st.integers(0, 2**31),
)
def test_backends_may_take_turns_with_a_sequence(
    rows: list[int], kind: str, way: dict, eos: int | None, part: int, seed: int
) -> None:
    """What one backend left, the other goes on from; also in the middle of a prefill."""
    g = torch.Generator().manual_seed(seed)
    packed = fast.pack(tiny_armd(vocab_size=7, n_layers=3, n_two_stream=2))
    plans = plans_for(rows, kind, int(torch.randint(6, 40, (), generator=g)), g)
    options = {"sampling": Sampling(**way), "eos": eos}
    found, expected = make(packed, plans, **options), make(packed, plans, **options)
    with torch.no_grad():
        backends = [
            lambda own: NativeDecoder(packed).steps(own)[0],
            partial(torch_backend.step, packed),
        ]
        while active := [sequence for sequence in found if not sequence.done]:
            for sequence in active:
                sequence.read_at_most(part)
            backends[int(torch.randint(2, (), generator=g))](active)
        while active := [sequence for sequence in expected if not sequence.done]:
            backends[1](active)
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens and one.end == other.end and one.step == other.step
        assert one.logp.tolist() == pytest.approx(other.logp.tolist(), abs=1e-4)


@compiled
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_sequence_has_the_same_bits_alone_and_among_others(weights: str) -> None:
    g = torch.Generator().manual_seed(1)
    packed = fast.pack(model_of(64, g, n_layers=2), weights)
    prompts = [torch.randint(7, (k,), generator=g).tolist() for k in range(0, 46, 2)]
    plans = from_prompts(prompts, length=50, streams=4)
    generators = [seeded(row) for row in range(len(plans))]
    together = make(packed, plans, generator=generators)
    for _ in decode(packed, together):
        pass
    for row, (plan, sequence) in enumerate(zip(plans, together, strict=True)):
        (alone,) = make(packed, [plan], generator=[seeded(row)])
        for _ in decode(packed, [alone]):
            pass
        assert alone.tokens == sequence.tokens and alone.logp == sequence.logp


@pytest.mark.parametrize("weights", ["plain", "fp32"])
def test_a_used_cache_gives_what_a_new_one_gives(weights: str) -> None:
    """To the last bit: the server's slots are used again and again."""
    model = fast.pack(tiny_armd(vocab_size=7), weights)
    (plan,) = from_prompts([[1, 2, 3]], length=20, streams=2)
    (other,) = from_prompts(None, length=30)
    used = make_cache(model, batch=1, length=30)
    for _ in decode(model, make(model, [other], cache=used)):
        pass
    used.clear()
    (again,), (new,) = make(model, [plan], cache=used), make(model, [plan])
    for sequence in (again, new):
        for _ in decode(model, [sequence]):
            pass
    assert again.tokens == new.tokens and again.logp == new.logp


@pytest.mark.parametrize("weights", ["plain", "fp32"])
def test_a_copied_cache_is_written_apart_from_the_original(weights: str) -> None:
    model = fast.pack(tiny_armd(vocab_size=7), weights)
    (plan,) = from_prompts(None, length=8)
    cache = make_cache(model, batch=1, length=8)

    def go_on(cache: KVCache, steps: int) -> list[torch.Tensor]:
        (sequence,) = make(model, [plan], cache=cache)
        for index in decode(model, [sequence]):
            if index + 1 == steps:
                break
        return [side.clone() for side in sequence.cache.keys]

    kept = go_on(cache, 3)
    twin = copy.deepcopy(cache)
    assert not all(map(torch.equal, go_on(twin, 6), kept))
    assert all(map(torch.equal, cache.keys, kept))


def test_the_cache_takes_the_memory_that_the_formula_says() -> None:
    writer = case_of("random", 4, 1).model
    config, (batch, length) = writer.config, (3, 21)
    numbers = 2 * config.n_layers * batch * (length + 1) * config.d_model
    numbers += batch * config.d_pe * config.d_model
    cache = make_cache(writer, batch=batch, length=length)
    assert sum(t.numel() for t in (*cache.keys, *cache.values, cache.prefix_state)) == numbers


def test_rows_that_take_equal_steps_are_one_batch_until_some_end() -> None:
    """In torch: one attention call a layer, whatever their orders; a row that ends is dropped."""
    model = tiny_armd(vocab_size=7)
    known = torch.zeros(6, 12, dtype=torch.bool)
    orders = [armd.order.random(12, generator=seeded(row)) for row in range(5)]
    order = armd.order.stack([*orders, armd.order.strided(12, 3)])
    plans = from_blanks(torch.zeros(6, 12, dtype=torch.long), known, order=order)
    sequences = make(model, plans, eos=3, generator=[seeded(1, row) for row in range(6)])
    assert {id(sequence.cache) for sequence in sequences[:5]} == {id(sequences[0].cache)}
    assert sequences[5].cache is not sequences[0].cache
    sizes = [sequences[0].cache.batch for _ in decode(model, sequences)]
    assert sizes[0] == 5 and sizes[-1] < 5, "choose a seed at which some rows end early"
    for row, (plan, sequence) in enumerate(zip(plans, sequences, strict=True)):
        (alone,) = make(model, [plan], eos=3, generator=[seeded(1, row)])
        for _ in decode(model, [alone]):
            pass
        assert alone.text() == sequence.text()


@compiled
def test_both_backends_report_the_most_probable_tokens_of_the_softmax() -> None:
    """As many as were asked for, the largest first, beside sequences that ask for none; a drawn
    token that is among them has its own log-probability there."""
    plain = tiny_armd(d_model=64, n_heads=4)
    model, plans = fast.pack(plain), from_prompts(torch.tensor([[5, 6]]), length=14, streams=3)
    asked = (0, 3, 9999)
    found = []
    for one in (model, plain):
        sequences = [
            Sequence(
                one,
                plans[0],
                make_cache(one, batch=1, length=14),
                sampling=Sampling(),
                generator=seeded(1),
                top_logprobs=top,
            )
            for top in asked
        ]
        decoder, steps = Decoder(one), []
        with torch.no_grad():
            while not sequences[0].done:
                steps += decoder.steps(sequences)
        found.append(steps)
    for in_c, in_torch in zip(*found, strict=True):
        for top, ours, theirs in zip(asked, in_c, in_torch, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                size = min(top, plain.config.vocab_size)
                assert a.token == b.token and len(a.top_logprobs) == len(b.top_logprobs) == size
                logps = [one.logp for one in a.top_logprobs]
                assert logps == sorted(logps, reverse=True)
                assert logps == pytest.approx([one.logp for one in b.top_logprobs], abs=1e-4)
                assert dict(a.top_logprobs).get(a.token, a.logp) == pytest.approx(a.logp, abs=1e-9)
