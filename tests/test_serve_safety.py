"""No other site's page can use the server, no file is reachable, what the model writes is text."""

import http.client
import json
from pathlib import Path

import pytest
from patience import PATIENCE
from serving import running

import armd.serve.app
from armd.errors import ArmdError


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


def call(server, method: str, path: str, body: bytes | None = None, **headers: str):
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    line.request(method, path, body, {"Content-Type": "application/json", **named})
    answer = line.getresponse()
    answer.content = answer.read()
    line.close()
    return answer


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/infill", "/v1/score", "/v1/tokenize"])
def test_no_cross_origin_writes(server, path: str) -> None:
    own = f"http://127.0.0.1:{server.port}"
    good = json.dumps({"text": "a"} if path in ("/v1/score", "/v1/tokenize") else {"prompt": "a"})
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "http://localhost",
        own[:-1],
    ):
        answer = call(server, "POST", path, good.encode(), Origin=origin)
        assert answer.status == 403 and b"other sites" in answer.content
        assert "access-control-allow-origin" not in answer.headers
    assert call(server, "POST", path, good.encode(), Sec_Fetch_Site="cross-site").status == 403
    assert call(server, "POST", path, good.encode(), Origin=own).status == 200
    assert call(server, "OPTIONS", path, Origin="http://evil.example").status in (403, 405)
    server.at_rest()


def test_names_made_to_point_here_are_refused(server) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", ""):
        assert call(server, "GET", "/v1/info", Host=host).status == 403
    for host in ("localhost", f"localhost:{server.port}", "127.0.0.1", "[::1]:80"):
        assert call(server, "GET", "/v1/info", Host=host).status == 200


@pytest.mark.parametrize("host", ["127.0.0.2", "127.1", "LOCALHOST", "0:0:0:0:0:0:0:1"])
def test_whatever_this_machine_is_called_other_names_are_refused(host: str) -> None:
    from armd.serve.security import SecurityMiddleware
    from armd.serve.server import listening

    async def app(*_):
        return None

    try:
        with listening(host, 0) as opened:
            bound = opened.getsockname()[0]
    except ArmdError:  # a machine without IPv6
        bound = "::1"
    guard = SecurityMiddleware(app, host=host, bound=bound, max_body=10, count=lambda *_: None)
    for name in ("evil.example", "evil.example:80", "127.0.0.2.evil.example", "[evil]", "10.0.0.1"):
        assert guard._refusal("GET", {b"host": name}) is not None
    named = f"[{host}]" if ":" in host else host
    for name in (named, f"{named}:80", "localhost:80", "127.0.0.2:80", "[::1]:80"):
        assert guard._refusal("GET", {b"host": name}) is None


def test_a_server_for_others_answers_to_any_name() -> None:
    from armd.serve.security import SecurityMiddleware

    async def app(*_):
        return None

    open_guard = SecurityMiddleware(app, host="0.0.0.0", max_body=10, count=lambda *_: None)
    assert open_guard._refusal("GET", {b"host": "gpu-7.example"}) is None
    assert open_guard._refusal("POST", {b"host": "a", b"origin": "http://b"}) is not None


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e%2f%2e%2e%2fcli.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/index.html%00.js",
        "/page/",
        "/app.py",
        "/../../etc/passwd",
        "/static/index.html",
        "/page/config.json",
    ],
)
def test_no_file_is_reachable(server, path: str) -> None:
    answer = call(server, "GET", path)
    assert answer.status in (404, 405)
    assert b"root:" not in answer.content and b"import" not in answer.content


def test_the_page_is_a_fixed_table_of_the_packages_own_files(server) -> None:
    folder = Path(armd.serve.app.__file__).with_name("page")
    table = armd.serve.app.page_files()
    assert "index.html" in table and set(table) <= {file.name for file in folder.iterdir()}
    for name, (content, kind) in table.items():
        answer = call(server, "GET", f"/page/{name}")
        assert answer.status == 200 and answer.content == content
        assert answer.headers["content-type"] == kind
    assert call(server, "GET", "/").content == table["index.html"][0]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/info", "/none", "/metrics", "/openapi.json"])
def test_every_answer_carries_the_headers(server, path: str) -> None:
    headers = call(server, "GET", path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"


def test_model_text_comes_as_json_never_as_a_page(server) -> None:
    """A model that writes <script>: its text is a JSON string of a type no browser runs."""
    text = "<script>alert(1)</script>"
    answer = call(server, "POST", "/v1/tokenize", json.dumps({"text": text}).encode())
    assert answer.headers["content-type"] == "application/json"
    assert "".join(json.loads(answer.content)["pieces"]) == text
    body = json.dumps({"tokens": [*text.encode(), 0], "known": [True] * 25 + [False]}).encode()
    answer = call(server, "POST", "/v1/infill", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(part[6:]) for part in answer.content.split(b"\n\n") if part]
    assert events[-1]["text"].startswith(text)
