"""The direct: requests that want texts written go from their bodies straight to their answers. The
application has the same routes and describes them, but its way there takes longer than a small
model's pass, and every piece of a streamed answer would go through all of its layers."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from .errors import UNREADABLE, Refusal, answer_to, expected
from .security import Asgi

Answering = Callable[[Any, Request], Awaitable[Response]]


class DirectRoutes:
    """In front of the application. `routes` has for each path what its bodies hold, and who answers
    them."""

    def __init__(self, app: Asgi, routes: Mapping[str, tuple[type[BaseModel], Answering]]) -> None:
        self.app, self.routes = app, routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        posted = scope["type"] == "http" and scope["method"] == "POST"
        route = self.routes.get(scope["path"]) if posted else None
        if route is None:
            await self.app(scope, receive, send)
            return
        kind, answering = route
        request, failure = Request(scope, receive), None
        try:
            response = await answering(read(kind, await request.body()), request)
        except Exception as error:
            response, failure = answer_to(error), error
        await response(scope, receive, send)
        if failure is not None and not expected(failure):
            raise failure  # for the log


def read(kind: type[BaseModel], body: bytes) -> BaseModel:
    """What a body says, or what is wrong with it, as FastAPI finds it."""
    if not body:
        missing = {"type": "missing", "loc": ("body",), "msg": "Field required"}
        raise RequestValidationError([missing])
    try:
        return kind.model_validate(json.loads(body), from_attributes=True)
    except json.JSONDecodeError as error:
        wrong = {"type": "json_invalid", "loc": ("body", error.pos), "ctx": {"error": error.msg}}
        raise RequestValidationError([wrong]) from None
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    except (RecursionError, ValueError):  # deep nesting, a number of endless digits, no UTF-8
        raise Refusal(400, UNREADABLE) from None
