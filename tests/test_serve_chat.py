"""Chats: the completion of what the template makes of the messages, in the client's own shapes."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import httpx
import openai
import pytest
from patience import PATIENCE
from serving import chat_template, running, writer

from armd.data.chat_template import Renderer
from armd.serve.requests import QueueFull
from armd.serve.templates import FEW, TemplateQueue

MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
TEXT = "system:be kind\nuser:hi\nanswer:"


@pytest.fixture(scope="module")
def server():
    with running(chat=chat_template()) as made:
        yield made


@pytest.fixture(scope="module")
def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("streams", [1, 3])
def test_a_chat_is_the_completion_of_its_template(client, streams: int) -> None:
    same = {"model": "tiny", "seed": 3, "n": 2, "extra_body": {"streams": streams}}
    plain = client.completions.create(prompt=TEXT, max_tokens=20, logprobs=2, **same)
    chat = client.chat.completions.create(
        messages=MESSAGES, max_completion_tokens=20, logprobs=True, top_logprobs=2, **same
    )
    assert chat.object == "chat.completion" and chat.usage == plain.usage
    for one, other in zip(chat.choices, plain.choices, strict=True):
        assert one.message.role == "assistant" and one.message.content == other.text
        assert one.finish_reason == other.finish_reason
        assert [t.logprob for t in one.logprobs.content] == other.logprobs.token_logprobs
        assert all(len(t.top_logprobs) == 2 for t in one.logprobs.content)


def test_streamed_equals_whole_and_names_its_role_first(client) -> None:
    settings = {"model": "tiny", "messages": MESSAGES, "seed": 5, "max_tokens": 15}
    whole = client.chat.completions.create(**settings)
    chunks = list(
        client.chat.completions.create(
            **settings, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    parts = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_left_to_itself_it_writes_to_its_end_or_as_much_as_fits(client) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=1)
    (choice,), usage = answer.choices, answer.usage
    assert choice.finish_reason == "stop" or usage.total_tokens == 64


def test_parts_of_text_are_joined(client) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    messages = [MESSAGES[0], {"role": "user", "content": parts, "name": "me"}]
    texts = [
        client.chat.completions.create(model="tiny", messages=given, seed=2, max_tokens=9)
        for given in (messages, MESSAGES)
    ]
    assert texts[0].choices[0].message == texts[1].choices[0].message


def test_without_a_template_the_404_says_what_to_do(client) -> None:
    with running() as server:
        other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.NotFoundError, match=r"has no chat template.*/v1/completions"):
            other.chat.completions.create(model="tiny", messages=MESSAGES)


def test_what_is_not_offered_is_said_in_a_sentence(client) -> None:
    for more, said in (
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not offered"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"presence_penalty": 1.0}, "presence_penalty is not offered"),
        ({"response_format": {"type": "json_object"}}, "response_format is not offered"),
        ({"extra_body": {"mesages": 1}}, "did you mean 'messages'"),
    ):
        with pytest.raises(openai.BadRequestError, match=said):
            client.chat.completions.create(model="tiny", messages=MESSAGES, **more)
    with pytest.raises(openai.BadRequestError, match="role must be at most 100 characters long"):
        client.chat.completions.create(model="tiny", messages=[{"role": "x" * 101, "content": ""}])
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(openai.BadRequestError, match="content must be a text"):
        client.chat.completions.create(model="tiny", messages=image)


def test_slow_templates_delay_chats_alone_and_end_with_the_server() -> None:
    """More chats than may wait: 429. Meanwhile a long text is read; at the end the rest get 503."""
    chat = chat_template()
    chat.renderer = Renderer(seconds=600)
    body = {"messages": [{"role": "user", "content": "slow"}], "max_tokens": 1}
    refused = threading.Event()
    clients = ThreadPoolExecutor(FEW + 2)
    with clients, running(writer(max_length=8192), chat=chat) as server:
        url = f"{server.url}/v1"

        def ask() -> httpx.Response:
            answer = httpx.post(f"{url}/chat/completions", json=body, timeout=PATIENCE)
            refused.set()
            return answer

        asked = [clients.submit(ask) for _ in range(FEW + 2)]
        assert refused.wait(PATIENCE)
        long = httpx.post(f"{url}/tokenize", json={"text": "a" * 5000}, timeout=PATIENCE)
        assert len(long.json()["tokens"]) == 5000
        while sum(one.done() for one in asked) < 2:
            time.sleep(0.01)
        server.service.stop()
        answers = [one.result(PATIENCE) for one in asked]
    full = [one for one in answers if one.status_code == 429]
    assert len(full) == 2 and all(int(one.headers["retry-after"]) > 0 for one in full)
    assert {one.status_code for one in answers if one not in full} == {503}


def test_a_client_that_leaves_makes_way_for_the_next_chat() -> None:
    chat = chat_template()
    chat.renderer = Renderer(seconds=600)
    body = {"messages": [{"role": "user", "content": "slow"}]}
    with running(chat=chat) as server:
        for _ in range(FEW + 4):
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.2)
        while server.service.chat.waiting:
            time.sleep(0.01)


def test_many_chats_that_come_at_once_wait_for_their_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As completions do: where the template is quick, only the queue's end refuses one."""
    monkeypatch.setattr("armd.serve.templates.WAIT_SECONDS", PATIENCE)  # quick, on any machine
    body = {"messages": MESSAGES, "max_tokens": 2}
    with ThreadPoolExecutor(40) as clients, running(chat=chat_template(), queue=32) as server:
        server.service.chat.warm_up()
        url = f"{server.url}/v1/chat/completions"
        ask = partial(httpx.post, url, json=body, timeout=PATIENCE)
        asked = [clients.submit(ask) for _ in range(40)]
        assert {one.result(PATIENCE).status_code for one in asked} == {200}


@pytest.mark.parametrize(("seconds", "wait"), [(2.0, FEW), (0.5, FEW), (0.01, 200)])
def test_how_many_chats_wait_follows_from_the_time_of_the_last(seconds: float, wait: int) -> None:
    """Those that wait hold places that other requests need."""
    queue, go = TemplateQueue(chat_template()), threading.Event()
    queue.seconds, queue.chat = seconds, SimpleNamespace(text=lambda _: go.wait(PATIENCE) and "x")

    async def many() -> list[object]:
        asked = [asyncio.create_task(queue.text([])) for _ in range(wait + 3)]
        await asyncio.sleep(0)
        assert queue.waiting == wait
        go.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(many())
    assert found[:wait] == ["x"] * wait and all(isinstance(e, QueueFull) for e in found[wait:])


def test_an_order_says_how_many_tokens_a_chat_shall_have(client) -> None:
    given = {"model": "tiny", "messages": MESSAGES, "seed": 1}
    said = client.chat.completions.create(
        **given, max_tokens=3, logprobs=True, extra_body={"order": [2, 0, 1]}
    )
    left_out = client.chat.completions.create(
        **given, logprobs=True, extra_body={"order": [2, 0, 1]}
    )
    assert left_out.choices == said.choices
    for count, wrong in ((60, f"has {len(TEXT) + 60} tokens"), (0, "name each")):
        with pytest.raises(openai.BadRequestError, match=wrong):
            client.chat.completions.create(**given, extra_body={"order": list(range(count))})
