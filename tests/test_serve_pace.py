"""What was drawn may wait for more, but never the first token of a text, its end, or for ever."""

import json
import threading

import httpx
import pytest
from eval_models import tiny_armd
from serving import running

from armd.generation.decoder import Decoder
from armd.generation.plan import from_prompts
from armd.model.sampling import Sampling
from armd.runtime.seeds import seeded
from armd.serve import outbox
from armd.serve.cache_pool import CachePool
from armd.serve.engine import Engine, GenerationRequest
from armd.serve.events import Ended, StepEvent

STEPS = 12


def told(texts: int = 1, *, exclusive: bool = False) -> list[list[tuple[int, object]]]:
    """What is told, delivery by delivery, of texts that are written together."""
    batches, over = [], threading.Event()
    (plan,) = from_prompts(None, length=STEPS)

    def deliver(given) -> None:
        batches.append([(callback(), event) for callback, event in given])
        if sum(isinstance(event, Ended) for batch in batches for _, event in batch) == texts:
            over.set()

    engine = Engine(tiny_armd(), slots=texts, deliver=deliver).start()
    jobs = [GenerationRequest(plan, Sampling(), seeded(i), lambda i=i: i) for i in range(texts)]
    engine.submit(jobs)
    while exclusive and not over.is_set():
        assert engine.run_exclusive(lambda: len(engine.outbox.waiting)).result(20) == 0
    assert over.wait(20)
    engine.stop()
    assert engine.join(20)
    return batches


def steps(batches, text: int) -> list[int]:
    return [e.step for batch in batches for i, e in batch if i == text and isinstance(e, StepEvent)]


def test_the_first_token_and_the_end_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FLUSH_INTERVAL", 1000.0)
    batches = told(texts=3)
    assert len(batches) == 2
    assert [(i, e.step) for i, e in batches[0]] == [(0, 0), (1, 0), (2, 0)]
    for text in range(3):
        assert steps(batches, text) == list(range(STEPS))
        assert isinstance([e for i, e in batches[1] if i == text][-1], Ended)


def test_nothing_waits_for_an_errand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FLUSH_INTERVAL", 1000.0)
    assert steps(told(exclusive=True), 0) == list(range(STEPS))


def test_without_a_pace_every_pass_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FLUSH_INTERVAL", 0.0)
    batches = told()
    assert [len(batch) for batch in batches] == [1] * (STEPS - 1) + [2]
    assert steps(batches, 0) == list(range(STEPS))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/infill"])
def test_what_was_drawn_before_a_failure_is_sent(path: str, monkeypatch) -> None:
    monkeypatch.setattr(outbox, "FLUSH_INTERVAL", 1000.0)
    steps, calls = Decoder.steps, iter(range(100))

    def breaking(decoder: Decoder, sequences, *_):
        if next(calls) == 5:
            raise MemoryError("none left")
        return steps(decoder, sequences)  # one at a time

    monkeypatch.setattr(Decoder, "steps", breaking)
    body = {"prompt": "ab", "max_tokens": 20, "stream": True, "seed": 1}
    with running() as server:
        answer = httpx.post(server.url + path, json=body)
        server.at_rest()
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    assert "failed" in events[-1]["error"]["message"]
    if path == "/v1/infill":
        assert [event.get("step") for event in events[1:-1]] == [0, 1, 2, 3, 4]
    else:  # bytes that are no characters yet are not shown
        assert "".join(event["choices"][0]["text"] for event in events[:-1])


def test_a_place_that_cannot_be_cleared_fails_one_text_alone(monkeypatch) -> None:
    clear, calls = CachePool.clear, iter(range(100))

    def failing(pool: CachePool, slot):
        if next(calls) == 1:
            raise MemoryError("none left")
        return clear(pool, slot)

    monkeypatch.setattr(CachePool, "clear", failing)
    body = {"prompt": "ab", "max_tokens": 2}
    with running() as server:
        found = [httpx.post(server.url + "/v1/completions", json=body) for _ in range(3)]
        server.at_rest()
    assert [answer.status_code for answer in found] == [200, 500, 200]
