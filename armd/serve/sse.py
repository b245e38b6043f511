"""Server-sent events: an answer sent in pieces, which ends when the client disconnects."""

import json
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from fastapi import Request
from pydantic_core import to_json
from starlette.responses import Response

from .errors import EXPECTED, Gone, said
from .service import unless_gone

DONE = "[DONE]"
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAMED = {"text/event-stream": {"schema": EVENT}}
"""For a route's description: a stream, event by event."""


def dumped(content: Any) -> bytes:
    """JSON; a number that it has no word for, such as log 0, is null."""
    return to_json(content, inf_nan_mode="null")


def json_answer(content: Any) -> Response:
    return Response(dumped(content), media_type="application/json")


def data(content: Any) -> bytes:
    """An event: words, JSON that was dumped, or what is to be dumped."""
    if isinstance(content, str):
        content = content.encode()
    return b"data: %b\n\n" % (content if isinstance(content, bytes) else dumped(content))


class EventStream(Response):
    """Sends what the generator yields, the events of a list together, and always calls `leave` at
    the end. Starlette's StreamingResponse notices a disconnected client only when it sends; a
    request in the queue sends nothing, so this one listens for the disconnect."""

    media_type = "text/event-stream"

    def __init__(
        self, request: Request, events: AsyncGenerator[list[Any], None], leave: Callable[[], None]
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.request, self.events, self.leave = request, events, leave

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await unless_gone(self.request, self._send(send))
        except (Gone, OSError):
            return
        finally:
            self.leave()

    async def _send(self, send: Any) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for contents in self.events:
                if body := b"".join(map(data, contents)):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except (Gone, OSError):
            raise
        except Exception as error:  # the status is sent already
            if not isinstance(error, EXPECTED):
                logging.getLogger("uvicorn.error").exception("an answer broke off")
            body = data({"type": "error", **json.loads(bytes(said(error).body))})
            await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            await self.events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
