"""A prompt that is read in parts, or taken over from another sequence, gives the bits of one that
is read at once; and nobody waits for all of it."""

import threading

import pytest
import torch
from engine_help import PLAIN, Hearer, filled, packed
from eval_models import tiny_armd
from patience import PATIENCE
from test_serve_scores import held

import armd
from armd.generation.api import decode, make_sequences
from armd.generation.decoder import Decoder
from armd.generation.plan import DecodePlan, from_blanks
from armd.native import library as native
from armd.runtime.seeds import seeded
from armd.serve import prefill, shares
from armd.serve.engine import Engine, GenerationRequest
from armd.serve.events import StepEvent

compiled = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
QUERIES: list[dict] = [
    {"query": "prefix"},
    {"query": "mean"},
    {"query": "shift"},
    {"query": "neighbor", "right_bias": True, "adapter_rank": 2},
]


def plan_of(given: int, blanks: int, order: armd.Order, size: int = 1) -> DecodePlan:
    """A prompt, read `size` tokens a block, and blanks in an order of their own."""
    n, known = given + blanks, torch.arange(given + blanks) < given
    tokens = torch.randint(300, (1, n), generator=seeded("prompt", given))
    block = torch.cat([torch.arange(given) // size, given + order.block])
    whole = armd.Order(torch.cat([torch.arange(given), given + order.position]), block)
    return from_blanks(tokens, known[None], order=whole)[0]


@compiled
@pytest.mark.parametrize("changes", QUERIES, ids=lambda changes: changes["query"])
@pytest.mark.parametrize("tokens", [1, 5, 64])
@pytest.mark.parametrize("size", [1, 3])
def test_a_prompt_in_parts_gives_the_bits_of_the_whole(
    changes: dict, tokens: int, size: int
) -> None:
    if changes["query"] == "shift" and size > 1:
        pytest.skip("it knows order left_to_right alone")
    model = packed(max_length=80, **changes)
    streams = 1 if changes["query"] == "shift" else 3
    plan = plan_of(70, 9, armd.order.strided(9, streams), size)
    sides = [make_sequences(model, [plan], PLAIN, generator=[seeded(1)])[0] for _ in range(2)]
    passes, decoder = 0, Decoder(model)
    with torch.no_grad():
        while sides[0].read_at_most(tokens):
            before = sides[0].read
            assert decoder.steps(sides[:1]) == [[()]] and sides[0].step == 0
            assert 0 < sides[0].read - max(before, 1) <= max(tokens, size)
            passes += 1
    assert passes == (0 if tokens >= 70 else -(-70 // tokens) - 1) or size > 1
    for sequence in sides:
        for _ in decode(model, [sequence]):
            pass
    assert sides[0].tokens == sides[1].tokens and sides[0].logp == sides[1].logp


def requests(plans: list[DecodePlan], hearers: list) -> list[GenerationRequest]:
    """The sequences of one request."""
    prompts = prefill.shared_prompts(plans)
    of_each = enumerate(zip(plans, hearers, prompts, strict=True))
    return [
        GenerationRequest(plan, PLAIN, seeded(0, index), hearer, prompt=prompt)
        for index, (plan, hearer, prompt) in of_each
    ]


def given_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with how many given tokens each pass reads."""
    counts, steps = [], engine.decoder.steps

    def counted(sequences, *until):
        counts.append(sum(s.upto - max(s.read, 1) for s in sequences if not s.step))
        return steps(sequences, *until)

    monkeypatch.setattr(engine.decoder, "steps", counted)
    return counts


@pytest.mark.parametrize("kind", ["strided", "random"])
@pytest.mark.parametrize("changes", QUERIES, ids=lambda changes: changes["query"])
@pytest.mark.parametrize("weights", [pytest.param(True, marks=compiled), False])
def test_sequences_of_a_request_read_their_prompt_once(
    changes: dict, kind: str, weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than slots, beside a text with another prompt."""
    if changes["query"] == "shift" and kind == "random":
        pytest.skip("it knows order left_to_right alone")
    monkeypatch.setattr(prefill, "TOKENS_A_PASS", 16)
    model = packed(**changes) if weights else tiny_armd(**changes)
    draws = [armd.order.random(6, generator=seeded(i)) for i in range(9)]
    orders = draws if kind == "random" else [armd.order.strided(6, 1)] * 9
    plans = [plan_of(50, 6, order) for order in orders]
    engine, hearers = Engine(model, slots=4).start(), [Hearer() for _ in plans]
    counts, go = given_tokens(engine, monkeypatch), held(engine)
    scheduled = engine.submit(requests(plans, hearers))
    other = Hearer()
    engine.submit([GenerationRequest(plan_of(20, 6, orders[0]), PLAIN, seeded(0, 99), other)])
    go.set()
    assert all(hearer.over.wait(PATIENCE) for hearer in [*hearers, other])
    engine.stop()
    assert engine.join(PATIENCE) and all(entry.cancelled for entry in scheduled)
    assert sum(counts) == 50 + 8 + 20 and max(counts) <= 16
    for index, (plan, hearer) in enumerate(zip(plans, hearers, strict=True)):
        expected = filled(model, plan, index)
        if weights:
            assert hearer.landed == expected, index
        else:  # a product of other rows may round otherwise
            found = {at: token for at, (token, _) in hearer.landed.items()}
            assert found == {at: token for at, (token, _) in expected.items()}


@compiled
def test_who_reads_for_others_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the prompt: the next sequence reads it, and all are as if alone."""
    monkeypatch.setattr(prefill, "TOKENS_A_PASS", 8)
    model, plan = packed(), plan_of(50, 6, armd.order.strided(6, 2))
    engine, hearers = Engine(model, slots=2).start(), [Hearer() for _ in range(4)]
    counts, go = given_tokens(engine, monkeypatch), held(engine)
    scheduled = engine.submit(requests([plan] * 4, hearers))
    steps = engine.decoder.steps

    def leaving(sequences, *until):
        if len(counts) == 3:
            engine.cancel(scheduled[:1])
        return steps(sequences, *until)

    monkeypatch.setattr(engine.decoder, "steps", leaving)
    go.set()
    assert all(hearer.over.wait(PATIENCE) for hearer in hearers[1:])
    engine.stop()
    assert engine.join(PATIENCE)
    assert not hearers[0].landed and sum(counts) == 4 * 8 + 50 + 2
    for index, hearer in enumerate(hearers[1:], 1):
        assert hearer.landed == filled(model, plan, index)


def test_a_text_is_written_while_a_long_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes more passes than the text has tokens, so the text is there first."""
    monkeypatch.setattr(prefill, "TOKENS_A_PASS", 2)
    engine, told, over = Engine(packed(), slots=3).start(), [], threading.Event()

    def listen(name: str):
        def hear(event) -> None:
            told.append(name)
            over.set() if name == "long" and not isinstance(event, StepEvent) else None

        return hear

    long, short = (plan_of(given, 6, armd.order.strided(6, 1)) for given in (56, 2))
    go = held(engine)
    engine.submit(requests([long] * 2, [listen("long"), listen("long")]))
    engine.submit(requests([short], [listen("short")]))
    go.set()
    assert over.wait(PATIENCE)
    engine.stop()
    assert engine.join(PATIENCE)
    assert told.index("long") == told.count("short") == 7


@compiled
def test_between_parts_of_a_prompt_a_text_has_passes_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a share this large the text is written to its end after one part of the prompt, though
    the prompt came first; then the prompt is read. Both are as if alone."""
    monkeypatch.setattr(prefill, "TOKENS_A_PASS", 8)
    monkeypatch.setattr(shares, "DECODE_PER_PREFILL", 1e9)
    monkeypatch.setattr(shares, "NOTICEABLE", -1e9)
    model, orders = packed(), armd.order.strided(12, 1)
    plans = [plan_of(given, 12, orders) for given in (50, 2)]
    engine, hearers = Engine(model, slots=3).start(), [Hearer(), Hearer()]
    monkeypatch.setattr(engine.prefill_budget, "plain_step", -1.0)
    counts, go = given_tokens(engine, monkeypatch), held(engine)
    engine.submit(requests([plans[0]], hearers[:1]))
    engine.submit([GenerationRequest(plans[1], PLAIN, seeded(0, 1), hearers[1])])
    go.set()
    assert all(hearer.over.wait(PATIENCE) for hearer in hearers)
    engine.stop()
    assert engine.join(PATIENCE)
    read = [at for at, count in enumerate(counts) if count]
    assert sum(counts) == 52 and read[:2] == [0, 1] and read[2] - read[1] > 1
    for index, (plan, hearer) in enumerate(zip(plans, hearers, strict=True)):
        assert hearer.landed == filled(model, plan, index)
