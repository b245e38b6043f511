"""The description is true: whatever is sent, right or wrong, the answer is one it describes, and
never a 5xx. ARMD_EXAMPLES=300 looks longer than `make test` does."""

import os

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from serving import chat_template, running

EXAMPLES = int(os.environ.get("ARMD_EXAMPLES", "12"))
GETS = ("/health", "/v1/models", "/v1/info", "/metrics")
POSTS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/infill",
    "/v1/score",
    "/v1/order",
    "/v1/tokenize",
)


@pytest.fixture(scope="module")
def described():
    with running(timeout=20.0, chat=chat_template()) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        server.at_rest()
        assert server.service.engine.metrics.failed == 0


def test_every_route_is_tried_and_names_its_answers(described) -> None:
    raw = described.raw_schema["paths"]
    assert set(raw) == {*GETS, *POSTS}
    for path in POSTS:
        answers = raw[path]["post"]["responses"]
        assert {"200", "400", "403", "413", "415"} <= set(answers)
        assert "422" not in answers and "default" not in answers


def test_who_comes_without_the_key_gets_an_answer_that_is_described() -> None:
    with running(api_key="key") as server:
        json = {"Content-Type": "application/json"}
        described = httpx.get(f"{server.url}/openapi.json", headers={"Authorization": "Bearer key"})
        for path, ways in described.json()["paths"].items():
            for way, operation in ways.items():
                status = httpx.request(way, server.url + path, headers=json).status_code
                assert status == (200 if path == "/health" else 401)
                assert str(status) in operation["responses"], path
                assert ("401" in operation["responses"]) == (path != "/health")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", POSTS)
def test_every_answer_is_described(described, path: str, mode: GenerationMode) -> None:
    try_out(described[path]["post"], mode)


@pytest.mark.parametrize("path", GETS)
def test_reports_are_described(described, path: str) -> None:
    try_out(described[path]["get"], GenerationMode.POSITIVE)


def try_out(operation, mode: GenerationMode) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def tried(case) -> None:
        case.call_and_validate(
            checks=[
                not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
                checks.response_headers_conformance,
                checks.negative_data_rejection,
            ],
            timeout=60,
        )

    tried()
