"""What a client gets when something is wrong, in the shape that OpenAI's clients read."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ..errors import ArmdError
from .complaints import complaint
from .requests import QueueFull, ShuttingDown
from .schema import FIELDS


class ErrorDetail(BaseModel):
    message: str
    """What is wrong, and what would be right."""
    type: str
    """invalid_request_error, overloaded or server_error."""
    param: str | None = None
    """The field at fault."""
    code: str | None = None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


STATUSES = {
    400: "The request is wrong; the message says how.",
    401: "The key is missing or wrong.",
    403: "The request comes from another site's page, or for another host.",
    404: "There is no such thing here.",
    405: "Not with this method.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body must be application/json.",
    429: "All slots and the queue are taken; try again after Retry-After seconds.",
    500: "A failure of the server's own.",
    503: "The server is shutting down, had no time for it, or its engine has failed.",
}


def responses(*statuses: int, key: bool = True) -> dict[int | str, dict[str, Any]]:
    """For a route: the answers it may give, besides the good one. `key`: the server may ask for its
    key."""
    return {
        status: {"model": ErrorAnswer, "description": STATUSES[status]}
        for status in sorted({400, 403, 405, *statuses} | ({401} if key else set[int]()))
    }


FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b'connection: close\r\n\r\n{"error": {"message": "too many connections; try again", '
    b'"type": "overloaded", "param": null, "code": "busy"}}'
)
UNREADABLE = "the body cannot be read; send JSON in UTF-8, without endless numbers or deep nesting"


class Refusal(Exception):
    """An answer that says no."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


class Gone(Exception):
    """The client has left; no answer is sent."""


def detail(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    kind = "invalid_request_error"
    if status in (429, 503):
        kind = "overloaded"
    elif status >= 500:
        kind = "server_error"
    # what a client sent may be in it, and need not be UTF-8
    said = [t and t.encode("utf-8", "replace").decode()[:400] for t in (message, param)]
    return {"error": {"message": said[0], "type": kind, "param": said[1], "code": code}}


def answer(status: int, message: str, *, headers: Any = None, **more: str | None) -> JSONResponse:
    return JSONResponse(detail(status, message, **more), status, headers=headers)


def said(error: Exception) -> JSONResponse:
    """The answer that an exception stands for."""
    if isinstance(error, Refusal):
        return answer(error.status, error.message, param=error.param, code=error.code)
    if isinstance(error, ArmdError):
        return answer(400, str(error))
    if isinstance(error, QueueFull):
        return answer(429, str(error), headers={"Retry-After": str(error.seconds)}, code="busy")
    if isinstance(error, ShuttingDown):
        return answer(503, str(error), headers={"Retry-After": "5"}, code=error.code)
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        message = error.detail if isinstance(error.detail, str) else STATUSES[error.status_code]
        if error.status_code == 400:  # FastAPI's own word for it says nothing
            message = UNREADABLE
        return answer(error.status_code, message, headers=error.headers)
    return answer(500, "the server failed at this; its log says how")


def _invalid(error: RequestValidationError) -> JSONResponse:
    """The first thing wrong with a body."""
    text, param = complaint(error.errors()[0], FIELDS)
    return answer(400, text, param=param)


EXPECTED = (
    Gone,
    Refusal,
    ArmdError,
    QueueFull,
    ShuttingDown,
    RequestValidationError,
    HTTPException,
)


def answer_to(error: Exception) -> Response:
    return Response(status_code=499) if isinstance(error, Gone) else said(error)


def install(app: FastAPI) -> None:
    async def handle(_: Request, error: Exception) -> Response:
        return answer_to(error)

    for kind in (*EXPECTED, Exception):
        app.add_exception_handler(kind, handle)
