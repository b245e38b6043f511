"""Blanks, scores and orders over HTTP are what the library says, token by token, step by step."""

import asyncio

import pytest
import torch
from serving import EOS, running

import armd
from armd.bench.load import ask, listen
from armd.runtime.seeds import seeded
from armd.serve.events import Ended
from armd.serve.infill import end_event, state_of
from armd.serve.schema import InfillRequest


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


def post(server, path: str, body: dict, status: int = 200):
    answer = asyncio.run(ask(("127.0.0.1", server.port), path, body))
    assert answer.status_code == status, answer.text
    return answer.json()


def events(server, body: dict) -> list[dict]:
    async def events():
        line = listen(("127.0.0.1", server.port), "/v1/infill", body)
        return [event async for _, event in line]

    return asyncio.run(events())


def landed(steps: list[dict]) -> list[list[tuple[int, int, float]]]:
    return [[(a["position"], a["token"], a["logprob"]) for a in step["at"]] for step in steps]


@pytest.mark.parametrize("order", [None, "random", [4, 2, 0, 1, 3, 5]])
@pytest.mark.parametrize("streams", [1, 2])
def test_every_step_is_the_librarys(server, order, streams: int) -> None:
    known = [True, False, True, False, False, True, False, False, False, True]
    tokens = [ord(c) if k else 0 for c, k in zip("abcdefghij", known, strict=True)]
    body = {"tokens": tokens, "known": known, "seed": 5, "streams": streams, "order": order}
    body |= {"temperature": 0.9, "rivals": 3}
    start, *steps, end = events(server, body)
    given = torch.tensor(known)
    if order is None:
        blanks = armd.order.strided(6, streams)
    else:
        position = torch.tensor(order) if isinstance(order, list) else None
        if position is None:
            position = armd.order.random(6, generator=seeded(5, 0, "order")).position
        blanks = armd.order.Order(position, torch.arange(6) // streams)
    whole = armd.order.completing(given, blanks)
    assert start["order"]["position"] == whole.position.tolist()
    assert start["order"]["block"] == whole.block.tolist()
    assert start["known"] == known and start["seed"] == 5 and start["steps"] == len(steps)
    assert start["tokens"] == [t if k else None for t, k in zip(tokens, known, strict=True)]
    expected = []
    for step in armd.stream(
        server.model,
        tokens=torch.tensor([tokens]),
        known=given[None],
        order=whole,
        temperature=0.9,
        generator=torch.Generator().manual_seed(5),
    ):
        columns = (step.position[0].tolist(), step.token[0].tolist(), step.logp[0].tolist())
        expected.append(list(zip(*columns, strict=True)))
    assert landed(steps) == expected
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert end["calls"] == len(steps) and end["finish_reason"] == "length"
    final = {p: t for step in expected for p, t, _ in step}
    assert end["tokens"] == [final.get(i, token) for i, token in enumerate(tokens)]
    for at in (at for step in steps for at in step["at"]):
        logp = [rival["logprob"] for rival in at["rivals"]]
        assert len(logp) == 3 and logp == sorted(logp, reverse=True)
    whole_answer = post(server, "/v1/infill", body | {"stream": False})
    assert whole_answer["start"] == start and landed(whole_answer["steps"]) == landed(steps)


def test_templates_and_prompts(server) -> None:
    body = {"text": "a ____ b ____", "blank_length": [2, 3], "seed": 1}
    start, *_, end = events(server, body)
    assert start["known"] == [True] + [False] * 2 + [True] * 2 + [False] * 3
    assert [p for p in start["pieces"] if p] == ["a", " ", "b"]
    assert end["text"].startswith("a") and len(end["tokens"]) == 8
    marked = {"text": "a @@ b @@", "blank": "@@", "blank_length": [2, 3], "seed": 1}
    assert events(server, marked)[-1]["text"] == end["text"]
    for seed in range(3):
        start, *_, end = events(server, {"prompt": "q", "max_tokens": 30, "seed": seed})
        ids = armd.generate(
            server.model,
            length=31,
            prompt=[[ord("q")]],
            generator=torch.Generator().manual_seed(seed),
            eos=EOS,
        )[0].tolist()
        text = ids[: [*ids, EOS].index(EOS)]
        assert end["text"] == server.service.tokenizer.decode(text)
        assert end["finish_reason"] == ("stop" if EOS in ids else "length")


def test_a_score_is_the_exact_log_likelihood(server) -> None:
    text = "hello, world"
    ids = torch.tensor([list(text.encode())])
    orders = {
        "left_to_right": armd.order.left_to_right(12),
        "strided": armd.order.strided(12, 3),
        "random": armd.order.random(12, generator=seeded(4, "order")),
    }
    for name, order in orders.items():
        streams = 3 if name == "strided" else 1
        found = post(
            server, "/v1/score", {"text": text, "order": name, "streams": streams, "seed": 4}
        )
        with torch.no_grad():
            logp = armd.log_likelihood(server.model, ids, order)[0].double()
        assert found["logprobs"] == pytest.approx(logp[order.inverse()].tolist(), abs=1e-5)
        assert found["log_likelihood"] == pytest.approx(float(logp.sum()), abs=1e-4)
        assert found["perplexity"] == pytest.approx(float((-logp.mean()).exp()), rel=1e-5)
        given = post(server, "/v1/score", {"tokens": ids[0].tolist(), "order": found["order"]})
        assert given["logprobs"] == found["logprobs"] and "".join(given["pieces"]) == text


def test_orders_to_look_at(server) -> None:
    strided = post(server, "/v1/order", {"kind": "strided", "length": 8, "streams": 2})
    assert strided["position"] == armd.order.strided(8, 2).position.tolist()
    for kind in ("left_to_right", "random", "infill", "masking", "shuffled"):
        body = {"kind": kind, "length": 9, "rho": 4, "known": [True] * 3 + [False] * 6, "seed": 1}
        found = post(server, "/v1/order", body)
        assert sorted(found["position"]) == list(range(9)) and found["block"][0] >= 0
        assert found == post(server, "/v1/order", body)


def test_tokens_and_reports(server) -> None:
    found = post(server, "/v1/tokenize", {"text": "né"})
    assert found["tokens"] == list("né".encode()) and len(found["pieces"]) == 3
    address = ("127.0.0.1", server.port)
    info = asyncio.run(ask(address, "/v1/info")).json()
    assert info["model"] == "tiny" and info["max_length"] == 64 and info["any_order"]
    assert info["eos"] == EOS and info["limits"]["slots"] == 8 and info["parameters"] == 7
    assert asyncio.run(ask(address, "/health")).json() == {"status": "ok"}
    text = asyncio.run(ask(address, "/metrics")).text
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        assert line.startswith("#") or (name and float(value) >= 0)
    assert 'armd_answers_total{path="/v1/tokenize",status="200"} 1' in text
    assert "armd_first_token_seconds_count" in text


def test_a_text_that_was_cut_ends_at_its_first_hole(server) -> None:
    """What other streams had drawn behind it is in the tokens."""
    service = server.service
    asked = InfillRequest(prompt="ab", max_tokens=6, streams=2)
    state = state_of(service, asked)
    state.tokens[2], state.tokens[5] = ord("c"), ord("f")
    end = end_event(service, state, Ended("length", "time"))
    assert end["text"] == "abc" and end["cut"] == "time"
    assert end["tokens"] == [*b"abc", None, None, ord("f"), None, None]
