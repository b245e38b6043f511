"""A route whose body is one JSON object. FastAPI describes it; its own way from a body to the
endpoint and back (dependencies, a check of our own answers) would take longer than some passes of a
small model, and passes wait for it."""

import asyncio
import gc
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from .errors import UNREADABLE, Refusal
from .side_work import SmallestFirst

MOST_FIELDS = 100
SMALL = 1 << 14
"""Bytes of a body that is read at once. Larger ones are read in a thread, one after the other: many
at a time leave half of the time to other requests."""
_large = SmallestFirst(1, "large-bodies")


class JsonRoute(APIRoute):
    """Its endpoint takes the body as a model and the request; what is no response yet, it sends as
    JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        assert self.body_field is not None, f"{self.path} has no body"
        kind, endpoint = self.body_field.field_info.annotation, self.endpoint

        async def handle(request: Request) -> Response:
            body = await request.body()
            if len(body) <= SMALL:
                asked = read(kind, body)
            else:
                work = partial(read_large, kind, body)
                asked = await asyncio.wrap_future(_large.submit(len(body), work))
            found = await endpoint(asked, request)
            return found if isinstance(found, Response) else JSONResponse(found)

        return handle


def read_large(kind: Any, body: bytes) -> BaseModel:
    """The same with garbage collection off: it would go through very many lists again and again
    while it holds the GIL, and parsed JSON has no cycles to be collected."""
    began = gc.isenabled()
    gc.disable()
    try:
        return read(kind, body)
    finally:
        if began:
            gc.enable()


def read(kind: Any, body: bytes) -> BaseModel:
    """What a body says, or what is wrong with it."""
    if not body:
        missing = {"type": "missing", "loc": ("body",), "msg": "Field required"}
        raise RequestValidationError([missing])
    try:
        return kind.model_validate(json.loads(body, object_pairs_hook=fields))
    except json.JSONDecodeError as error:
        wrong = {"type": "json_invalid", "loc": ("body", error.pos), "ctx": {"error": error.msg}}
        raise RequestValidationError([wrong]) from None
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    except (RecursionError, ValueError):  # deep nesting, a number of endless digits, no UTF-8
        raise Refusal(400, UNREADABLE) from None


def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a body; to say of each of very many fields what is wrong would take long."""
    if len(pairs) > MOST_FIELDS:
        raise Refusal(400, f"an object has more than {MOST_FIELDS} fields; send fewer")
    return dict(pairs)
