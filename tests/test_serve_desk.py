"""The direct answers as the application behind it would."""

import asyncio
import json
import math

import httpx
import pytest
from eval_models import tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from serving import writer

from armd.serve import schema
from armd.serve.app import make_app
from armd.serve.direct_routes import DirectRoutes
from armd.serve.security import SecurityMiddleware
from armd.serve.service import Service

BODIES = {"/v1/completions": schema.CompletionRequest, "/v1/infill": schema.InfillRequest}
TOLD = ("text", "finish_reason", "tokens", "error")
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.floats(-1, 2),
    st.text(max_size=8),
    st.lists(st.integers(-1, 300) | st.booleans(), max_size=5),
    st.sampled_from([math.nan, 2**70, "random", "a ____ b", "\ud800", {"include_usage": True}]),
)


@pytest.fixture(scope="module")
def apps():
    """The service, and its application with the direct and without."""
    service = Service(writer(), tokenizer(), name="tiny")
    whole = make_app(service)
    assert isinstance(whole.app, DirectRoutes)
    plain = SecurityMiddleware(
        whole.app.app, host="127.0.0.1", max_body=10**6, count=lambda path, status: None
    )
    yield service, whole, plain
    service.engine.stop()
    assert service.engine.join(PATIENCE)


def answers(apps, path: str, body: bytes) -> list[tuple[int, object]]:
    service, *both = apps

    async def ask() -> list[tuple[int, object]]:
        service.loop = asyncio.get_running_loop()
        found = []
        for app in both:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as line:
                kind = {"Content-Type": "application/json"}
                answer = await line.post(path, content=body, headers=kind)
                found.append((answer.status_code, told(answer)))
        return found

    return asyncio.run(ask())


def told(answer: httpx.Response) -> list[object]:
    """All of an answer that does not say when it was given."""
    if "json" in answer.headers["content-type"]:
        return only(answer.json())
    events = (line.removeprefix("data: ") for line in answer.text.split("\n\n") if line)
    return [only(json.loads(event)) for event in events if event != "[DONE]"]


def only(content: object) -> list[object]:
    if isinstance(content, list):
        return [only(one) for one in content]
    if not isinstance(content, dict):
        return []
    nested = [only(one) for name, one in content.items() if name not in TOLD]
    return [*(content.get(name) for name in TOLD), *nested]


def fields(path: str):
    return st.dictionaries(st.sampled_from(sorted(BODIES[path].model_fields)), values, max_size=3)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(BODIES)), st.data())
def test_any_fields_get_the_same_answer(apps, path: str, data) -> None:
    body = {"prompt": "My", "max_tokens": 3} | data.draw(fields(path)) | {"seed": 1}
    with_desk, without = answers(apps, path, json.dumps(body).encode("utf-8", "surrogatepass"))
    assert with_desk == without


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b"{", b"{}garbage", b'{"prompt": "\xff"}', b"[" * 90_000),
        *(b'{"seed": 1' + b"0" * 5000 + b"}", b'{"prompt": "a", "prompt": 5}'),
    ],
    ids=lambda body: repr(body)[:20],
)
@pytest.mark.parametrize("path", sorted(BODIES))
def test_any_bytes_get_the_same_answer(apps, path: str, body: bytes) -> None:
    with_desk, without = answers(apps, path, body)
    assert with_desk == without and with_desk[0] == 400


def test_a_failure_of_its_own_is_a_500_and_goes_to_the_log(apps) -> None:
    service, whole, _ = apps
    write, service.write = service.write, None  # type: ignore[method-assign]
    try:
        content = {"prompt": "a", "stream": True}
        (status, _), (other, _) = answers(apps, "/v1/completions", json.dumps(content).encode())
        assert status == other == 500
        with pytest.raises(TypeError):
            asyncio.run(posted(whole, content))
    finally:
        service.write = write


async def posted(app, content: object) -> httpx.Response:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as line:
        return await line.post("/v1/completions", json=content)
