"""The engine's laws: everyone gets the text they would get alone, to the last bit; slots are never
lost; a full queue says so; the end keeps what there is."""

import threading
import time

import pytest
import torch
from engine_help import PLAIN, Hearer, alone, filled, job, packed, task
from eval_models import tiny_armd
from test_serve_scores import held

import armd
from armd.generation.plan import from_blanks
from armd.model.sampling import Sampling
from armd.native import library as native
from armd.runtime.seeds import seeded
from armd.serve.engine import Engine, GenerationRequest, QueueFull, ShuttingDown
from armd.serve.events import Ended, Failed


@pytest.fixture
def engine():
    made = Engine(packed(), slots=3, queue=100).start()
    yield made
    made.stop()
    assert made.join(20)


def at_rest(engine: Engine) -> None:
    """All slots are free again, nothing waits."""
    for _ in range(200):
        if len(engine.pool.free) > engine.slots and not engine.active and not engine.waiting:
            return
        time.sleep(0.02)
    raise AssertionError("a slot is stuck")


@pytest.mark.parametrize("query", ["prefix", "mean"])
@pytest.mark.skipif(native.library() is None, reason="no C compiler: equal up to rounding alone")
def test_everyone_gets_the_text_they_get_alone_bit_for_bit(query: str) -> None:
    """Texts of all kinds come in at odd times, some leave again; tokens and log-probabilities."""
    model = packed(query=query)
    engine = Engine(model, slots=5, queue=100).start()
    hearers = [Hearer() for _ in range(24)]
    left = []
    for index, hearer in enumerate(hearers):
        left += engine.submit([job(index, hearer)])
        left += engine.submit([job(100 + index, Hearer())])
        time.sleep(0.003 * (index % 4))
        if index % 2:
            engine.cancel(left[1::2])
    for index, hearer in enumerate(hearers):
        assert hearer.over.wait(60) and isinstance(hearer.end, Ended)
        assert hearer.landed == alone(model, index), index
    at_rest(engine)
    engine.stop()
    assert engine.join(20)


def together(model, jobs: list[tuple]) -> list[Hearer]:
    """What an engine writes on plans, each with its EOS."""
    engine, hearers = Engine(model, slots=4).start(), [Hearer() for _ in jobs]
    engine.submit(
        [
            GenerationRequest(plan, Sampling(), seeded(0, index), hearer, eos=eos)
            for index, ((plan, eos), hearer) in enumerate(zip(jobs, hearers, strict=True))
        ]
    )
    assert all(hearer.over.wait(60) for hearer in hearers)
    engine.stop()
    return hearers


@pytest.mark.skipif(native.library() is None, reason="no C compiler: equal up to rounding alone")
def test_long_prompts_and_large_blocks_beside_short_ones() -> None:
    """Some passes have more rows than layer.c is meant for, and go another way."""
    model, plans = packed(max_length=400), []
    for n, there, order in (
        (230, 200, armd.order.strided(30, 3)),
        (300, 0, armd.order.masking(300, 2, generator=seeded(1))),
        (20, 4, armd.order.strided(16, 1)),
        (190, 126, armd.order.strided(64, 4)),
    ):
        known = torch.arange(n) < there
        tokens = torch.randint(300, (1, n), generator=seeded(2))
        order = armd.order.completing(known, order)
        plans.append(from_blanks(tokens, known[None], order=order)[0])
    hearers = together(model, [(plan, None) for plan in plans])
    for index, (plan, hearer) in enumerate(zip(plans, hearers, strict=True)):
        assert hearer.landed == filled(model, plan, index), index


@pytest.mark.parametrize("weights", [True, False], ids=["packed", "plain"])
def test_an_eos_ends_a_text_where_it_does_in_the_library(weights: bool) -> None:
    """Each text has the EOS that it would have drawn some way in; a known one ends nothing."""
    model = packed() if weights else tiny_armd()
    jobs = []
    for index in range(9):
        n = 30
        known = torch.rand(n, generator=seeded(3, index)) < 0.2
        blanks = int((~known).sum())
        kind = (armd.order.strided(blanks, 1 + index % 3), armd.order.random(blanks))[index % 2]
        tokens = torch.randint(300, (1, n), generator=seeded(4, index))
        order = armd.order.completing(known, kind)
        free = filled(model, from_blanks(tokens, known[None], order=order)[0], index)
        eos = list(free.values())[len(free) * index // 9][0]
        tokens[0, index] = eos
        jobs.append((from_blanks(tokens, known[None], order=order)[0], eos))
    ends = []
    for index, ((plan, eos), hearer) in enumerate(zip(jobs, together(model, jobs), strict=True)):
        expected = filled(model, plan, index, eos=eos)
        assert {p: t for p, (t, _) in hearer.landed.items()} == {
            p: t for p, (t, _) in expected.items()
        }
        ends.append(hearer.end.reason)
    assert {"stop", "length"} >= set(ends) and "stop" in ends


def test_plain_weights_give_the_same_tokens() -> None:
    """Common products differ in their last bits between batches; the draws do not notice."""
    model = tiny_armd()
    engine = Engine(model, slots=4).start()
    hearers = [Hearer() for _ in range(8)]
    engine.submit([job(index, hearer) for index, hearer in enumerate(hearers)])
    for index, hearer in enumerate(hearers):
        assert hearer.over.wait(60)
        expected = alone(model, index)
        assert {p: t for p, (t, _) in hearer.landed.items()} == {
            p: t for p, (t, _) in expected.items()
        }
    engine.stop()


def test_an_autoregressive_model_is_served_too() -> None:
    model = packed(query="shift")
    engine = Engine(model, slots=4).start()
    prompts = [[1], [2, 3, 4], [5, 6]]
    hearers = [Hearer() for _ in prompts]
    jobs = []
    for index, (prompt, hearer) in enumerate(zip(prompts, hearers, strict=True)):
        known = torch.arange(20) < len(prompt)
        tokens = torch.tensor([prompt + [0] * (20 - len(prompt))])
        plan = from_blanks(tokens, known[None])[0]
        jobs.append(GenerationRequest(plan, Sampling(), seeded(0, index), hearer))
    engine.submit(jobs)
    for index, (prompt, hearer) in enumerate(zip(prompts, hearers, strict=True)):
        assert hearer.over.wait(60)
        text = armd.generate(model, length=20, prompt=[prompt], generator=[seeded(0, index)])
        drawn = [hearer.landed[p][0] for p in range(len(prompt), 20)]
        assert drawn == text[0, len(prompt) :].tolist()
    engine.stop()


def test_a_full_queue_is_refused_whole_and_has_room_again(engine: Engine) -> None:
    hearers = [Hearer() for _ in range(3 + 100)]
    with pytest.raises(QueueFull) as refused:
        engine.submit([job(i, Hearer()) for i in range(3 + 100 + 1)])
    assert 1 <= refused.value.seconds <= 60
    engine.submit([job(i, hearer) for i, hearer in enumerate(hearers)])
    assert all(hearer.over.wait(60) for hearer in hearers)
    at_rest(engine)


def test_who_goes_away_is_told_nothing_more_and_frees_the_slot(engine: Engine) -> None:
    """Each request is counted once, as abandoned or as done; of one that was cancelled while the
    engine stood still nothing is ever told, not even its end."""
    hearers, asked = [Hearer() for _ in range(12)], threading.Event()
    heard = hearers[0].begun.set
    hearers[0].begun.set = lambda: (heard(), asked.wait(20))  # type: ignore[method-assign]
    scheduled = engine.submit([job(i, hearer) for i, hearer in enumerate(hearers)])
    hearers[0].begun.wait(20)

    def cancel() -> list[int]:
        engine.cancel(scheduled)
        return [len(hearer.landed) for hearer in hearers]

    answer = engine.run_exclusive(cancel)
    asked.set()
    before = answer.result(20)
    at_rest(engine)
    assert engine.metrics.abandoned + engine.metrics.done == 12 and engine.metrics.abandoned > 0
    assert [len(hearer.landed) for hearer in hearers] == before
    ended = sum(hearer.end is not None for hearer in hearers)
    assert ended == engine.metrics.done and all(isinstance(h.end, Ended | None) for h in hearers)
    after = Hearer()
    engine.submit([job(1, after)])
    assert after.over.wait(20) and after.landed == alone(engine.model, 1)


def test_a_text_that_fails_takes_no_other_with_it(engine: Engine) -> None:
    good, bad = Hearer(), Hearer()
    plan, sampling, _ = task(0)
    plan.tokens[0], plan.known[0] = 10**6, True  # outside the vocabulary
    engine.submit([GenerationRequest(plan, sampling, seeded(0), bad), job(2, good)])
    assert bad.over.wait(20) and isinstance(bad.end, Failed)
    assert good.over.wait(20) and good.landed == alone(engine.model, 2)
    at_rest(engine)


@pytest.mark.parametrize(
    "way", [{}, {"top_p": 0.9}, {"repetition_penalty": 1.2}, {"temperature": 0}]
)
def test_a_text_that_meets_a_broken_weight_fails_alone(engine: Engine, way: dict) -> None:
    with torch.no_grad():
        engine.model.embedding.weight[5] = torch.nan
    hearers, known = [Hearer(), Hearer()], torch.arange(12) < 2
    plans = [from_blanks(torch.tensor([[1, last, *[0] * 10]]), known[None])[0] for last in (2, 5)]
    for plan, hearer, sampling in zip(plans, hearers, (PLAIN, Sampling(**way)), strict=True):
        engine.submit([GenerationRequest(plan, sampling, seeded(0), hearer, eos=None)])
    good, bad = hearers
    assert bad.over.wait(20) and isinstance(bad.end, Failed) and "NaN" in bad.end.message
    assert good.over.wait(20) and isinstance(good.end, Ended)
    at_rest(engine)


def test_time_and_shutdown_end_a_text_with_what_it_has() -> None:
    engine = Engine(packed(), slots=2).start()
    late, kept, cut = Hearer(), Hearer(), Hearer()
    engine.submit([job(2, late, deadline=time.monotonic() - 1)])
    assert late.over.wait(20) and late.end == Ended("length", "time") and not late.landed
    engine.submit([job(2, kept)])
    engine.stop(grace=30)
    assert kept.over.wait(20) and kept.end == Ended("length")
    assert engine.join(20)
    with pytest.raises(ShuttingDown):
        engine.submit([job(1, Hearer())])
    slow = Engine(packed(), slots=1).start()
    first = Hearer()
    slow.submit([job(2, first), job(5, cut)])
    slow.stop(grace=0)
    assert cut.over.wait(20) and cut.end == Ended("length", "shutdown")
    assert slow.join(20)


def test_errands_have_the_model_for_themselves(engine: Engine) -> None:
    hearer = Hearer()
    engine.submit([job(2, hearer)])
    threads = {engine.run_exclusive(threading.get_ident).result(20) for _ in range(3)}
    assert threads == {engine.thread.ident}
    with pytest.raises(ZeroDivisionError):
        engine.run_exclusive(lambda: 1 // 0).result(20)
    assert hearer.over.wait(20) and hearer.landed == alone(engine.model, 2)


def test_a_request_of_many_texts_leaves_slots_to_others(engine: Engine) -> None:
    """Another one, which came later, has the next slot that is free."""
    told = []
    go = held(engine)
    engine.submit([job(2, lambda event, i=i: told.append((i, event))) for i in range(20)])
    other = Hearer()
    engine.submit([job(2, lambda event: (told.append((99, event)), other(event)))])
    go.set()
    assert other.over.wait(60)
    begun = list(dict.fromkeys(i for i, _ in told))
    assert begun.index(99) <= 2 * engine.slots


def test_a_request_that_has_every_slot_leaves_the_spare_one_to_others() -> None:
    """The next request begins before any text of the first has ended; the one after it waits."""
    engine = Engine(packed(), slots=3, queue=100).start()
    told: list[tuple[str, bool]] = []
    begun, go = threading.Event(), threading.Event()

    def noted(name: str, hearer: Hearer):
        def take(event) -> None:
            begun.set()
            assert go.wait(60)
            told.append((name, isinstance(event, Ended)))
            hearer(event)

        return take

    first, others = [Hearer() for _ in range(4)], [Hearer(), Hearer()]
    engine.submit([job(2, noted("first", hearer)) for hearer in first])
    assert begun.wait(60)
    for name, hearer in zip("ab", others, strict=True):
        engine.submit([job(2, noted(name, hearer))])
    go.set()
    for hearer in (*first, *others):
        assert hearer.over.wait(60) and hearer.landed == alone(engine.model, 2)
    assert told.index(("a", False)) < told.index(("first", True)) < told.index(("b", False))
    at_rest(engine)
    engine.stop()
    assert engine.join(20)


def test_requests_of_one_text_never_have_more_than_the_slots() -> None:
    engine = Engine(packed(), slots=3, queue=100).start()
    go, taken, step = held(engine), [], engine._step
    hearers = [Hearer() for _ in range(8)]
    for hearer in hearers:
        engine.submit([job(2, hearer)])
    engine._step = lambda: (taken.append(len(engine.active)), step())  # type: ignore[method-assign]
    go.set()
    assert all(hearer.over.wait(60) for hearer in hearers)
    engine.stop()
    assert engine.join(20) and max(taken) == engine.slots
