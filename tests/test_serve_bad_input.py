"""Whatever is sent, the answer is a 4xx that says what is wrong, and the server goes on."""

import http.client
import json
import math
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from pydantic import ValidationError
from serving import running

from armd.serve import chat_schema, complaints, completions, schema

PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/infill",
    "/v1/score",
    "/v1/order",
    "/v1/tokenize",
)
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server():
    with running(max_body=200_000, step_tokens=12) as made:
        yield made


def post(server, path: str, body: bytes, headers: dict[str, str] = JSON) -> tuple[int, dict]:
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        line.request("POST", path, body, headers)
        answer = line.getresponse()
        content = answer.read()
        kind = answer.getheader("content-type", "")
        return answer.status, json.loads(content) if "json" in kind else {}
    finally:
        line.close()


def refused(server, path: str, body: bytes, status: int = 400) -> str:
    """The message of a refusal; the server must answer well right after it."""
    found, content = post(server, path, body)
    assert found == status, content
    error = content["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    assert post(server, "/v1/tokenize", b'{"text": "ok"}')[0] == 200
    return error["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"prompt": 5}', "prompt"),
        (b'{"prompt": {"a": 1}}', "prompt"),
        (b'{"max_tokens": "many"}', "max_tokens"),
        (b'{"max_tokens": 1.5}', "max_tokens"),
        (b'{"max_tokens": -1}', "max_tokens must be at least 0"),
        (b'{"max_tokens": 99999999999999999999999}', "max_tokens"),
        (b'{"max_tokens": 2000000000, "order": [0, 1]}', "the model takes 64"),
        (b'{"prompt": "' + b"x" * 64 + b'"}', "to leave room"),
        (b'{"temperature": NaN}', "temperature"),
        (b'{"temperature": Infinity}', "temperature"),
        (b'{"temperature": 1e999}', "temperature"),
        (b'{"temperature": -1}', "temperature must be at least 0"),
        (b'{"temperature": 1' + b"0" * 400 + b"}", "temperature"),
        (b'{"temperature": 1' + b"0" * 5000 + b"}", "JSON"),
        (b'{"top_p": 0}', "top_p"),
        (b'{"seed": 9223372036854775808}', "seed"),
        (b'{"n": 1000000}', "n"),
        (b'{"prompt": [300]}', "vocabulary of 257"),
        (b'{"prompt": [300], "max_tokens": 0}', "vocabulary of 257"),
        (b'{"prompt": [-1]}', "prompt"),
        (b'{"prompt": [1, "a"]}', "prompt"),
        (b'{"prompt": "\\ud800"}', "prompt"),
        (b'{"model": "\\ud800"}', "model"),
        (b'{"\\ud800": 1}', "UTF-8"),
        (b'{"promt": "x"}', "there is no field 'promt'; did you mean 'prompt'?"),
        (b'{"qqq": "x"}', "there is no field 'qqq'; /openapi.json"),
        (b'{"order": [0, 0], "max_tokens": 2}', "no permutation"),
        (b'{"order": [0], "max_tokens": 2}', "name each"),
        (b'{"order": "sideways"}', "order"),
        (b'{"frequency_penalty": 1}', "frequency_penalty is not offered"),
        (b'{"presence_penalty": 1}', "use repetition_penalty"),
        (b'{"logit_bias": {"5": 1}}', "logit_bias is not offered; leave it out"),
        (b'{"tools": []}', "tools is not offered"),
        (b'{"best_of": 3}', "best_of"),
        (b'{"prompt": "x", "prompt', "JSON"),
        (b"", "the body is missing"),
        (b"[]", "the body must be an object"),
        (b"null", "the body"),
        (b"\xff\xfe{}", "JSON"),
        (b'{"prompt": "\xff"}', "body"),
        (b'{"prompt": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "body"),
        (b'{"prompt": "' + b"a b " * 40_000 + b'"}', "the model takes 64"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_completions(server, body: bytes, said: str) -> None:
    message = refused(server, "/v1/completions", body)
    assert said in message, message
    assert len(message) < 500 and "nput should be" not in message


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/infill", {}, "say what to fill"),
        ("/v1/infill", {"text": "no blank"}, "underscores"),
        ("/v1/infill", {"text": "__", "blank_length": 10**8}, "the model takes 64"),
        ("/v1/infill", {"text": "__ __", "blank_length": [1]}, None),
        ("/v1/infill", {"text": "__ __", "blank_length": [1, 2, 3]}, "3 blank lengths"),
        ("/v1/infill", {"text": "__" * 5 + " __" * 60}, "the model takes 64"),
        ("/v1/infill", {"text": " " * 150_000}, "the model takes 64"),
        ("/v1/infill", {"text": "a." * 30, "blank": ".", "blank_length": 60}, "has 1800 tokens"),
        ("/v1/infill", {"text": "__", "repetition_penalty": 1e-308}, "repetition_penalty"),
        ("/v1/infill", {"tokens": [1, 2], "known": [True]}, "known has 1"),
        ("/v1/infill", {"tokens": [1], "known": [True]}, "nothing is blank"),
        ("/v1/infill", {"tokens": [], "known": []}, "nothing is blank"),
        ("/v1/infill", {"tokens": [999, 1], "known": [True, False]}, "vocabulary"),
        ("/v1/infill", {"prompt": "x", "text": "__"}, "one of"),
        ("/v1/infill", {"text": "__", "max_tokens": 3}, "max_tokens does nothing"),
        ("/v1/infill", {"text": "__", "known": [True]}, "known does nothing"),
        ("/v1/infill", {"prompt": "x", "blank": "@@"}, "blank does nothing"),
        ("/v1/infill", {"prompt": "x", "blank_length": 8}, "blank_length does nothing"),
        ("/v1/infill", {"prompt": "x", "rivals": 9}, "rivals"),
        ("/v1/infill", {"prompt": "x" * 64}, "the model takes 64"),
        ("/v1/score", {"text": ""}, "nothing to score"),
        ("/v1/score", {"text": "a", "tokens": [1]}, "say what to score"),
        ("/v1/score", {"tokens": [300]}, "vocabulary"),
        ("/v1/score", {"text": "ab", "order": "random", "streams": 2}, "streams needs the order"),
        ("/v1/score", {"text": "ab", "order": {"position": [0], "block": [0]}}, "order is for 1"),
        ("/v1/score", {"text": "a", "order": {"position": [], "block": [0]}}, "name both"),
        ("/v1/score", {"text": "ab", "order": {"position": [0, 0], "block": [0, 1]}}, "permut"),
        ("/v1/score", {"text": "a", "order": {"position": [10**30], "block": [0]}}, "numbers"),
        ("/v1/score", {"text": "ab", "order": "strided", "streams": 3}, "streams 3"),
        ("/v1/order", {"kind": "random", "length": 10**9}, "length"),
        ("/v1/order", {"kind": "shuffled", "length": 3, "rho": 4}, "rho 4"),
        ("/v1/order", {"kind": "infill", "length": 3, "known": [True]}, "known has 1"),
        ("/v1/tokenize", {"text": 5}, "text"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_requests_elsewhere(server, path: str, body: dict, said: str | None) -> None:
    if said is None:
        assert post(server, path, json.dumps(body | {"stream": False}).encode())[0] == 200
    else:
        assert said in refused(server, path, json.dumps(body).encode())


@pytest.mark.parametrize("path", PATHS)
def test_a_body_beyond_the_limit_is_not_read(server, path: str) -> None:
    """10 MB, said beforehand, and in chunks of unknown number."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    line.putrequest("POST", path)
    line.putheader("Content-Type", "application/json")
    line.putheader("Content-Length", str(10**7))
    line.endheaders(b'{"prompt": "' + b"x" * 1000)
    assert line.getresponse().status == 413
    line.close()
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    chunks = (b'{"text": "' + b"x" * 50_000 for _ in range(6))
    with suppress(OSError):  # the server may hang up before all is sent
        line.request("POST", path, chunks, JSON, encode_chunked=True)
    line._HTTPConnection__state = "Request-sent"  # type: ignore[attr-defined]
    answer = line.getresponse()
    assert answer.status == 413 and b"200000 bytes" in answer.read()
    line.close()


@pytest.mark.parametrize("path", PATHS)
def test_only_json_and_only_the_methods_there_are(server, path: str) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert post(server, path, b"{}", {"Content-Type": kind})[0] == 415
    for method, status in (("GET", 405), ("PUT", 405), ("DELETE", 405)):
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        line.request(method, path)
        answer = line.getresponse()
        assert answer.status == status and "error" in json.loads(answer.read())
        line.close()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([2**63, -(2**70), math.nan, math.inf, "random", "____", "\x00"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
BODIES = (
    schema.CompletionRequest,
    chat_schema.ChatRequest,
    schema.InfillRequest,
    schema.ScoreRequest,
    schema.OrderRequest,
    schema.TokenizeRequest,
)
fields = st.sampled_from(sorted({name for body in BODIES for name in body.model_fields}))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PATHS), st.dictionaries(fields, values, max_size=5) | values)
def test_no_body_makes_it_fail(server, path: str, body) -> None:
    status, _ = post(server, path, json.dumps(body).encode("utf-8", "surrogatepass"))
    assert status in (200, 400, 404), body


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PATHS), st.binary(max_size=200))
def test_no_bytes_make_it_fail(server, path: str, body: bytes) -> None:
    assert 400 <= post(server, path, body)[0] < 500


def test_in_the_end_all_is_well(server) -> None:
    server.at_rest()
    assert server.service.engine.metrics.failed == 0


WRONG = (-1, 1.5, "\ud800", None, [], [-1], [[]], {}, {"a": 1})
REQUESTS = (
    *(schema.CompletionRequest, schema.InfillRequest, schema.ScoreRequest, schema.OrderRequest),
    *(schema.GivenOrder, chat_schema.ChatRequest, chat_schema.Message),
)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_list_of_wrong_entries_is_not_gone_through(kind) -> None:
    """A complaint for each of a million would keep everybody waiting."""
    for field in kind.model_fields:
        for wrong in WRONG:
            with suppress(ValidationError):
                kind.model_validate({field: [wrong] * 60})
                continue
            counts = []
            for size in (10, 60):
                with pytest.raises(ValidationError) as found:
                    kind.model_validate({field: [wrong] * size})
                counts.append(found.value.error_count())
            assert counts[0] == counts[1], (field, wrong)


def test_a_body_of_endless_fields_is_refused(server) -> None:
    body = json.dumps({f"x{i}": 1 for i in range(10_000)}).encode()
    assert "fewer" in refused(server, "/v1/completions", body)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 30, "streams": 13}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 30, "streams": 13, "order": "random"}),
        ("/v1/infill", {"text": "a __ b", "blank_length": 30, "streams": 13}),
    ],
)
def test_a_step_that_others_would_wait_long_for_is_refused(server, path, asked):
    assert "step of 13 tokens" in refused(server, path, json.dumps(asked).encode())
    fewer = json.dumps({**asked, "streams": 12}).encode()
    assert post(server, path, fewer)[0] == 200


def test_a_stream_that_the_server_fails_at_is_in_its_log(server, monkeypatch, caplog) -> None:
    def broken(*_):
        raise KeyError("a bug")

    monkeypatch.setattr(completions, "top_table", broken)
    body = b'{"prompt": "a", "max_tokens": 2, "logprobs": 1, "stream": true}'
    post(server, "/v1/completions", body)
    assert "a bug" in caplog.text


def test_a_long_name_of_no_field_is_compared_in_part(monkeypatch) -> None:
    compared: list[str] = []

    def compare(name: str, *_: object, **__: object) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr(complaints.difflib, "get_close_matches", compare)
    complaints.complaint({"type": "extra_forbidden", "loc": ("body", "x" * 10**6)}, ["prompt"])
    assert len(compared[0]) < 100
