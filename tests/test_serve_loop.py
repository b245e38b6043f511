"""What grows with a request is worked out beside the event loop, and only if there is room for it:
meanwhile the server answers everybody else."""

import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from patience import PATIENCE
from serving import chat_template, running, writer

from armd.serve import completions, json_route
from armd.serve.chat_schema import ChatRequest
from armd.serve.service import Service
from armd.serve.side_work import SmallestFirst


@pytest.fixture(scope="module")
def server():
    with running(writer(max_length=256), slots=2, queue=62, chat=chat_template()) as made:
        yield made
        made.at_rest()


def spy(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> set[str]:
    """The names of the threads that call it."""
    real, names = getattr(owner, name), set()

    def spied(*given, **options):
        names.add(threading.current_thread().name)
        return real(*given, **options)

    monkeypatch.setattr(owner, name, spied)
    return names


def loop_thread(server) -> str:
    asked: list[str] = []
    there = threading.Event()
    ask = lambda: (asked.append(threading.current_thread().name), there.set())  # noqa: E731
    server.service.loop.call_soon_threadsafe(ask)
    assert there.wait(PATIENCE)
    return asked[0]


MANY = {
    "texts in a random order": {"prompt": [7] * 20, "n": 64, "max_tokens": 50, "order": "random"},
    "prompts of tokens": {"prompt": [[i] * 100 for i in range(64)], "max_tokens": 1},
    "nothing given": {"prompt": "", "n": 64, "max_tokens": 100, "order": "random"},
    "chats": {"messages": [{"role": "user", "content": "a"}], "n": 64, "order": "random"},
}


@pytest.mark.parametrize("kind", MANY)
def test_plans_of_many_texts_hold_up_nobody_and_are_made_only_where_there_is_room(
    server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = MANY[kind] | {"stop": [chr(i) for i in range(16)], "stream": True}
    path = server.url + ("/v1/chat/completions" if "messages" in body else "/v1/completions")
    real, begun, free, asked = Service.plan, threading.Event(), threading.Event(), []

    def waiting(service, tokens, *given):
        asked.append(len(tokens))
        begun.set()
        free.wait(20)
        return real(service, tokens, *given)

    monkeypatch.setattr(Service, "plan", waiting)
    with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=15) as client:
        first = pool.submit(leave_soon, path, body)
        assert begun.wait(PATIENCE)
        try:
            assert client.get(server.url + "/health").status_code == 200
            assert client.post(path, json=body).status_code == 429
            assert len(asked) == 1, "planned for a request that is refused"
        finally:
            free.set()
        assert first.result(PATIENCE) == 200
    server.at_rest()
    assert server.service.coming == 0


def leave_soon(path: str, body: dict) -> int:
    """The status of an answer that nobody reads."""
    with httpx.stream("POST", path, json=body, timeout=PATIENCE) as answer:
        return answer.status_code


@pytest.mark.parametrize("stream", [False, True])
def test_many_short_echoes_are_read_and_written_beside_the_loop(
    server, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = spy(monkeypatch, completions, "read_whole")
    written = spy(monkeypatch, completions, "offset_of")
    body = {"prompt": [[i] * 100 for i in range(64)], "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = httpx.post(
        server.url + "/v1/completions", json=body | {"stream": stream}, timeout=PATIENCE
    )
    assert answer.status_code == 200
    assert read and written and loop_thread(server) not in read | written


def test_the_pieces_of_a_text_are_named_beside_the_loop(server, monkeypatch) -> None:
    named = spy(monkeypatch, server.service.tokenizer, "piece")
    assert httpx.post(server.url + "/v1/tokenize", json={"text": "ab"}).json()["pieces"]
    assert named and loop_thread(server) not in named


def test_a_text_too_long_to_score_is_refused_before_its_order_is_made(
    server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from armd.serve import score

    made = spy(monkeypatch, score, "order_of")
    body = {"tokens": [1] * 60000, "order": "random"}
    answer = httpx.post(server.url + "/v1/score", json=body)
    assert answer.json()["error"]["code"] == "context_length_exceeded" and not made


def test_more_texts_than_ever_fit_are_a_mistake_and_not_a_full_queue(server) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": ["a"] * 64, "n": 2}),
        ("/v1/completions", {"prompt": ["a"] * 64, "n": 2, "max_tokens": 0, "echo": True}),
    ):
        assert httpx.post(server.url + path, json=body).status_code == 400


SAID = {"messages": [{"role": "user", "content": "a"}]}
LONG = "a" * 100_000
WRONG = [
    ("/v1/completions", {"prompt": "a", "model": "other"}, 404),
    ("/v1/completions", {"prompt": "a", "best_of": 2}, 400),
    ("/v1/completions", {"prompt": ["a", LONG]}, 400),
    ("/v1/completions", {"prompt": "a", "suffix": LONG}, 400),
    ("/v1/completions", {"prompt": [1] * 256}, 400),
    ("/v1/chat/completions", SAID | {"model": "other"}, 404),
    ("/v1/infill", {"text": "a __", "model": "other"}, 404),
    ("/v1/infill", {"text": "a __", "prompt": "a"}, 400),
    ("/v1/infill", {"tokens": [1, 2], "known": [True]}, 400),
    ("/v1/infill", {"tokens": [1] * 300, "known": [False] * 300}, 400),
    ("/v1/infill", {"text": LONG + "__"}, 400),
    ("/v1/score", {"text": LONG}, 400),
]


@pytest.mark.parametrize("path, body, status", WRONG)
def test_a_mistake_is_named_also_where_the_queue_is_full(
    server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict, status: int
) -> None:
    """To come again would not mend it. Nothing is worked out for it."""
    encoded = spy(monkeypatch, server.service.tokenizer, "encode")
    monkeypatch.setattr(server.service.engine, "queue", -server.service.engine.slots)
    right = {
        "/v1/chat/completions": SAID,
        "/v1/infill": {"text": "a __"},
        "/v1/score": {"text": "a"},
    }
    assert httpx.post(server.url + path, json=right.get(path, {"prompt": "a"})).status_code == 429
    assert httpx.post(server.url + path, json=body).status_code == status
    assert not encoded


def test_large_bodies_are_read_beside_the_loop(server, monkeypatch: pytest.MonkeyPatch) -> None:
    read = spy(monkeypatch, json_route, "read")
    body = {"prompt": "a", "max_tokens": 1, "user": 5, "suffix": "a" * json_route.SMALL}
    assert httpx.post(server.url + "/v1/completions", json=body).status_code == 400
    assert read and loop_thread(server) not in read
    assert gc.isenabled()


@pytest.mark.parametrize("field", ["stream_options", "logit_bias", "metadata", "tools", "messages"])
def test_a_body_of_many_mistakes_is_refused_at_the_first(server, field: str) -> None:
    """pydantic would list every one of them."""
    many = {str(i): [] for i in range(json_route.MOST_FIELDS + 1)}
    body = {"messages": [{"role": "user", "content": "a"}], field: many}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400 and "more than 100 fields" in answer.text
    body[field] = [{"wrong": 1}] * 5000
    with pytest.raises(RequestValidationError) as refused:
        json_route.read(ChatRequest, json.dumps(body).encode())
    assert len(refused.value.errors()) < 5


def test_large_bodies_are_parsed_smallest_first(server, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on, parsed = threading.Event(), threading.Event(), []
    read = json_route.read_large

    def noted(kind, body: bytes):
        parsed.append(len(body))
        began.set()
        assert go_on.wait(PATIENCE)
        return read(kind, body)

    monkeypatch.setattr(json_route, "read_large", noted)
    monkeypatch.setattr(json_route, "_large", SmallestFirst(1, "large-bodies"))
    sizes = [20_000, 60_000, 50_000, 30_000]
    with ThreadPoolExecutor(len(sizes)) as clients:
        for number, size in enumerate(sizes):
            text = "a" * size
            clients.submit(httpx.post, server.url + "/v1/tokenize", json={"text": text})
            if not number:
                assert began.wait(PATIENCE)
            begin = time.monotonic()
            while len(json_route._large.waiting) < number and time.monotonic() < begin + PATIENCE:
                time.sleep(0.01)
        go_on.set()
    # every second one is the oldest
    assert [round(size, -4) for size in parsed] == [20_000, 60_000, 30_000, 50_000]
