"""A route whose body is one JSON object. FastAPI describes it; its own way from a body to the
endpoint and back (dependencies, a check of our own answers) would take longer than some passes of a
small model, and passes wait for it."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from .errors import UNREADABLE, Refusal

MOST_FIELDS = 100


class JsonRoute(APIRoute):
    """Its endpoint takes the body as a model and the request; what is no response yet, it sends as
    JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        assert self.body_field is not None, f"{self.path} has no body"
        kind, endpoint = self.body_field.field_info.annotation, self.endpoint

        async def handle(request: Request) -> Response:
            found = await endpoint(read(kind, await request.body()), request)
            return found if isinstance(found, Response) else JSONResponse(found)

        return handle


def read(kind: Any, body: bytes) -> BaseModel:
    """What a body says, or what is wrong with it."""
    if not body:
        missing = {"type": "missing", "loc": ("body",), "msg": "Field required"}
        raise RequestValidationError([missing])
    try:
        found = json.loads(body)
        if isinstance(found, dict) and len(found) > MOST_FIELDS:  # to name each would take long
            raise Refusal(400, f"the body has more than {MOST_FIELDS} fields; send fewer")
        return kind.model_validate(found)
    except json.JSONDecodeError as error:
        wrong = {"type": "json_invalid", "loc": ("body", error.pos), "ctx": {"error": error.msg}}
        raise RequestValidationError([wrong]) from None
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    except (RecursionError, ValueError):  # deep nesting, a number of endless digits, no UTF-8
        raise Refusal(400, UNREADABLE) from None
