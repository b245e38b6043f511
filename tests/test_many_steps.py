"""Many decode steps in one call of C are the same steps as one by one, and the call ends as soon as
somebody has to look."""

from ctypes import c_int

import pytest
import torch
from engine_help import PLAIN, Hearer, packed
from eval_models import tiny_armd
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from test_decoder import plans_for

import armd
from armd.errors import ArmdError
from armd.generation.decoder import Decoder
from armd.generation.kv_cache import make_cache
from armd.generation.plan import DecodePlan, from_blanks, from_prompts
from armd.generation.sequence import Sequence
from armd.model.sampling import Sampling
from armd.native import library as native
from armd.native import packed as fast
from armd.native.packed import FastLM
from armd.runtime.seeds import seeded
from armd.serve import outbox
from armd.serve.engine import Engine, GenerationRequest

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
QUERIES = ("prefix", "mean", "neighbor")
FOREVER = 1e9
GREEDY = Sampling(0)


def sequences_of(model: FastLM, plans: list[DecodePlan], **options) -> list[Sequence]:
    return [
        Sequence(
            model,
            plan,
            make_cache(model, batch=1, length=len(plan.tokens)),
            generator=seeded(number),
            top_logprobs=number,
            **options,
        )
        for number, plan in enumerate(plans)
    ]


def taken(model: FastLM, sequences: list[Sequence], *until) -> tuple[list[list], list[int]]:
    """What each sequence drew, step by step, and how many steps each call took."""
    found, calls = [[] for _ in sequences], []
    with torch.no_grad():
        while going := [i for i, sequence in enumerate(sequences) if not sequence.done]:
            rounds = Decoder(model).steps([sequences[i] for i in going], *until)
            calls.append(len(rounds))
            for results in rounds:
                for i, result in zip(going, results, strict=True):
                    found[i].append(result)
    return found, calls


@settings(max_examples=60, deadline=None)
@given(
    query=st.sampled_from(QUERIES),
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    kind=st.sampled_from(["strided", "masking", "prompts", "anywhere"]),
    way=st.sampled_from([{}, {"top_p": 0.8}, {"temperature": 0}, {"repetition_penalty": 1.7}]),
    eos=st.sampled_from([None, 3]),
    seed=st.integers(0, 2**31),
)
def test_many_steps_in_a_call_are_the_same_steps(
    query: str, rows: list[int], kind: str, way: dict, eos: int | None, seed: int
) -> None:
    """To the bit: tokens, log-probabilities, the most probable tokens, ends and caches."""
    g = torch.Generator().manual_seed(seed)
    model = packed(vocab_size=9, n_layers=3, n_two_stream=2, query=query)
    plans = plans_for(rows, kind, int(torch.randint(6, 40, (), generator=g)), g)
    options = {"sampling": Sampling(**way), "eos": eos}
    one, many = sequences_of(model, plans, **options), sequences_of(model, plans, **options)
    expected, single = taken(model, one)
    found, calls = taken(model, many, FOREVER)
    assert found == expected and set(single) == {1} and sum(calls) == sum(single)
    for a, b in zip(one, many, strict=True):
        assert (a.text(), a.stopped, a.seen) == (b.text(), b.stopped, b.seen)
        assert a.cache.prefix_state.equal(b.cache.prefix_state)
        assert a.cache.prefix_rows == b.cache.prefix_rows
        for side in ("keys", "values"):
            pairs = zip(getattr(a.cache, side), getattr(b.cache, side), strict=True)
            assert all(x.equal(y) for x, y in pairs)


def test_a_call_ends_at_the_first_token_at_an_end_at_its_time_and_when_it_is_told_to() -> None:
    model, plans = packed(), [from_prompts(None, length=n)[0] for n in (9, 20)]
    options: dict = {"sampling": Sampling()}
    assert taken(model, sequences_of(model, plans, **options), FOREVER)[1] == [1, 8, 11]
    assert taken(model, sequences_of(model, plans, **options), 0.0)[1] == [1] * 20
    told = c_int(1)
    assert taken(model, sequences_of(model, plans, **options), FOREVER, told)[1] == [1] * 20


def test_what_was_drawn_before_logits_were_not_finite_is_there() -> None:
    """The step that failed is the last of its call, and of its sequence alone."""
    plain = tiny_armd(tie_word_embeddings=False)
    order, known = armd.order.left_to_right(12), torch.arange(12) == 5
    unused = plain.config.vocab_size - 1  # given in the middle of what is drawn
    tokens = torch.full((1, 12), unused)
    (bad,) = from_blanks(tokens, known[None], order=order)
    (good,) = from_prompts(None, length=12)
    whole, _ = taken(model := fast.pack(plain), sequences_of(model, [good, bad], sampling=GREEDY))
    assert not any(one.token == unused for steps in whole for step in steps for one in step)
    with torch.no_grad():
        plain.embedding.weight[unused] = float("nan")
    found = sequences_of(model := fast.pack(plain), [good, bad], sampling=GREEDY)
    rounds = [row for _ in range(2) for row in Decoder(model).steps(found, FOREVER)]
    assert len(rounds) == 7 and found[0].step == 7 and found[1].step == 6
    for number, results in enumerate(rounds):
        assert results[0] == whole[0][number]
        assert isinstance(results[1], ArmdError) if number == 6 else results[1] == whole[1][number]


@pytest.mark.parametrize("changing", [False, True])
def test_a_request_that_comes_waits_for_one_step_alone(
    changing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for all of them until the next delivery."""
    monkeypatch.setattr(outbox, "FLUSH_INTERVAL", 1000.0)
    engine, hearer, counts = Engine(packed()), Hearer(), []
    steps = engine.decoder.steps

    def counted(*given):
        if changing:  # what a request, a score and one who leaves do, from another thread
            engine.cancel([])
        rounds = steps(*given)
        counts.append(len(rounds))
        return rounds

    monkeypatch.setattr(engine.decoder, "steps", counted)
    (plan,) = from_prompts(None, length=12)
    engine.start().submit([GenerationRequest(plan, PLAIN, seeded(0), hearer)])
    assert hearer.over.wait(PATIENCE)
    engine.stop()
    assert engine.join(PATIENCE)
    assert counts == ([1] * 12 if changing else [1, 11])
    assert sorted(hearer.landed) == list(range(12))
