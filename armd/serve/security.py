"""ASGI middleware: API key, Host and Origin checks, limits of bodies, security headers."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect

from .errors import answer
from .pace import pace_of

log = logging.getLogger("uvicorn.error")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(:[0-9]{1,5})?", re.IGNORECASE)
OPEN_PATHS = ("/health",)
READING = ("GET", "HEAD")
"""Answered without a key, and methods without a body."""

READ_SECONDS = 20.0
SMALL_BODY = 1 << 16
GAVE_UP = "armd.gave_up"
"""The ASGI extension that tells whether a request's client has left."""
SINGLE = tuple(b"host origin sec-fetch-site content-type content-length authorization".split())
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


class SecurityMiddleware:
    """Around the whole application. Refuses wrong keys, pages of other sites (Origin), names that
    were made to point here (Host, when only this machine is served), bodies that are too large, too
    slow or no JSON; puts the security headers on every answer and counts it."""

    def __init__(
        self,
        app: Asgi,
        *,
        host: str,
        max_body: int,
        count: Callable[[str, int], None],
        api_key: str | None = None,
        bound: str | None = None,
    ) -> None:
        """`host` as it was named; `bound`: the address that this turned out to be."""
        self.app, self.max_body, self.count = app, max_body, count
        self.host, self.local = host.lower(), is_loopback(bound or host)
        self.key = None if api_key is None else _digest(api_key.encode())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def send_sealed(message: Any) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                self.count(scope["path"], message["status"])
                there = {name.lower() for name, _ in message["headers"]}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items()]
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in extra if pair[0] not in there),
                ]
            await send(message)

        try:
            await self._answer(scope, receive, send_sealed)
        except (ConnectionResetError, BrokenPipeError, ClientDisconnect):
            log.warning("client of %s %s left", scope["method"], scope["path"][:80])
        except asyncio.CancelledError:  # the server has waited long enough, and ends
            if not begun:
                await answer(503, "the server is shutting down")(scope, receive, send_sealed)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        names = [name for name, _ in scope["headers"]]
        if any(names.count(name) > 1 for name in SINGLE):
            refusal: Asgi | None = answer(400, "a header that may come once came twice")
        else:
            refusal = self._refusal(scope["method"], headers) or self._no_key(scope, headers)
        if refusal is None and scope["method"] not in READING:
            gave_up = scope.get("extensions", {}).get(GAVE_UP, lambda: False)
            refusal, receive = await self._read(receive, gave_up)
        await (refusal or self.app)(scope, receive, send)

    def _no_key(self, scope: Any, headers: dict[bytes, str]) -> Asgi | None:
        """A refusal, unless the key came: as a bearer token, or as the password that a browser
        asks for. Compared in constant time."""
        is_open = scope["path"] in OPEN_PATHS and scope["method"] in READING
        if self.key is None or is_open:
            return None
        kind, _, given = headers.get(b"authorization", "").partition(" ")
        words = given.strip().encode("latin-1")
        if kind.lower() == "basic":
            try:
                words = base64.b64decode(words, validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                words = b""
        if hmac.compare_digest(_digest(words), self.key):
            return None
        ask = {"WWW-Authenticate": 'Basic realm="armd"'}
        return answer(401, "this server asks for its key: Authorization: Bearer KEY", headers=ask)

    def _refusal(self, method: str, headers: dict[bytes, str]) -> Asgi | None:
        host = headers.get(b"host", "")
        if self.local and not self._names_us(host):
            return answer(403, f"this server answers to localhost, not to '{host[:80]}'")
        if method in READING:
            return None
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "same-origin")
        if origin is not None and not same_site(origin, host):
            return answer(403, "pages of other sites may not write here")
        if site not in ("same-origin", "none"):
            return answer(403, "pages of other sites may not write here")
        if method == "POST":
            kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return answer(415, "send JSON, with the header Content-Type: application/json")
        length = headers.get(b"content-length", "0").strip()
        if not length.isdecimal() or int(length[:20]) > self.max_body:
            return self._too_large()
        return None

    def _names_us(self, host: str) -> bool:
        """A Host that no other site can have: an address of this machine, or the name that was
        given to listen at."""
        found = HOST.fullmatch(host)
        name = found[1].strip("[]").lower() if found else ""
        return bool(name) and (is_loopback(name) or name == self.host)

    def _too_large(self) -> Asgi:
        close = {"Connection": "close"}
        return answer(413, f"the body passes {self.max_body} bytes; send less", headers=close)

    async def _read(
        self, receive: Any, gave_up: Callable[[], bool] = lambda: False
    ) -> tuple[Asgi | None, Any]:
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
                    if size > SMALL_BODY:  # those of which the least was read come first
                        pace = pace_of(asyncio.get_running_loop(), "bodies")
                        if not await pace.turn(len(parts[-1]), size, gave_up):
                            return _silence, receive
        except TimeoutError:
            return answer(408, f"the body did not come within {READ_SECONDS:.0f} s"), receive
        whole: list[Any] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def again() -> Any:
            return whole.pop() if whole else await receive()

        return None, again


def is_loopback(host: str) -> bool:
    """Whether it can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


async def _silence(*_: Any) -> None:
    """The client has left: no answer is sent."""


def same_site(origin: str, host: str) -> bool:
    """An Origin is of this very server, and of nothing else: no path, no user, no other port."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _digest(words: bytes) -> bytes:
    """Of one length whatever was sent, so that comparing says nothing about the key's."""
    return hashlib.sha256(words).digest()
