"""The guard: what never reaches the routes, and what no answer goes without."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from .errors import answer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
READ_SECONDS = 20.0
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
Asgi = Callable[[Any, Any, Any], Any]


class Guard:
    """Around the whole application. Refuses pages of other sites (Origin), names that were made to
    point here (Host, when only this machine is served), bodies that are too large, too slow or no
    JSON; puts the security headers on every answer and counts it."""

    def __init__(
        self, app: Asgi, *, host: str, max_body: int, count: Callable[[str, int], None]
    ) -> None:
        self.app, self.max_body, self.count = app, max_body, count
        self.local = host in LOOPBACK

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.count(scope["path"], message["status"])
                there = {name.lower() for name, _ in message["headers"]}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items()]
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in extra if pair[0] not in there),
                ]
            await send(message)

        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["method"], headers)
        if refusal is None and scope["method"] not in ("GET", "HEAD"):
            refusal, receive = await self._read(receive)
        await (refusal or self.app)(scope, receive, sealed)

    def _refusal(self, method: str, headers: dict[bytes, str]) -> Asgi | None:
        host = headers.get(b"host", "")
        if self.local and name_of(host) not in LOOPBACK:
            return answer(403, f"this server answers to localhost, not to '{host[:80]}'")
        if method in ("GET", "HEAD"):
            return None
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "same-origin")
        if origin is not None and netloc(origin) != host.lower():
            return answer(403, "pages of other sites may not write here")
        if site not in ("same-origin", "none"):
            return answer(403, "pages of other sites may not write here")
        if method == "POST":
            kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return answer(415, "send JSON, with the header Content-Type: application/json")
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.max_body:
            return self._too_large()
        return None

    def _too_large(self) -> Asgi:
        close = {"Connection": "close"}
        return answer(413, f"the body passes {self.max_body} bytes; send less", headers=close)

    async def _read(self, receive: Any) -> tuple[Asgi | None, Any]:
        """The whole body, within its limits, to be received again as one message."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(READ_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return _silence, receive
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > self.max_body:
                        return self._too_large(), receive
        except TimeoutError:
            return answer(408, f"the body did not come within {READ_SECONDS:.0f} s"), receive
        whole: list[Any] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def again() -> Any:
            return whole.pop() if whole else await receive()

        return None, again


async def _silence(*_: Any) -> None:
    """Nobody is there to be answered."""


def name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def netloc(origin: str) -> str | None:
    """The host and port of an Origin, as a Host header would have them; None for 'null'."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
