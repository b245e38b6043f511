"""The application: every route, its errors and its guard."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from . import chat, completions
from . import infill as infilling
from . import score as scoring
from .errors import Refusal, install, responses
from .requests import ShuttingDown
from .schema import Health, Info, Json, ModelList
from .security import SecurityMiddleware
from .service import Service

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_files() -> dict[str, tuple[bytes, str]]:
    """The page, read once: name -> content and type. What is not in this table is not served."""
    folder = Path(__file__).with_name("page")
    files = sorted(file for file in folder.iterdir() if file.suffix in KINDS)
    return {file.name: (file.read_bytes(), KINDS[file.suffix]) for file in files}


def make_app(
    service: Service,
    *,
    host: str = "127.0.0.1",
    api_key: str | None = None,
    bound: str | None = None,
) -> Any:
    """The whole server as an ASGI application; `bound` is the address that `host` turned out to
    be."""
    files = page_files()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.loop = asyncio.get_running_loop()
        yield
        service.stop()

    # the usual pages of documentation load scripts from elsewhere; /openapi.json is the source
    app = FastAPI(title="armd", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    install(app)
    for part in (completions, chat, infilling, scoring):
        app.include_router(part.routes(service))
    _add_reports(app, service)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        content, kind = files["index.html"]
        return Response(content, media_type=kind)

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name not in files:
            raise Refusal(404, "there is no such file")
        content, kind = files[name]
        return Response(content, media_type=kind)

    described = JSONResponse(_description(app)).body

    @app.head("/openapi.json", include_in_schema=False)
    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> Response:
        return Response(described, media_type="application/json")

    known = {"/", "/openapi.json", *app.openapi()["paths"]}

    def count(path: str, status: int) -> None:
        service.engine.metrics.answered(path if path in known else "other", status)

    most = service.limits.max_body
    return SecurityMiddleware(
        app, host=host, bound=bound, max_body=most, count=count, api_key=api_key
    )


def _add_reports(app: FastAPI, service: Service) -> None:
    engine, config, limits = service.engine, service.model.config, service.limits

    @app.head("/health", include_in_schema=False)
    @app.get("/health", response_model=Health, responses=responses(503, key=False))
    async def health() -> Json:
        if engine.failed:
            raise ShuttingDown(failed=True)
        return {"status": "stopping" if engine.stopping else "ok"}

    @app.get("/v1/models", response_model=ModelList, responses=responses())
    async def models() -> Json:
        return {"data": [{"id": service.name, "created": service.created}]}

    @app.get("/v1/models/{model:path}", responses=responses(404), include_in_schema=False)
    async def model(model: str) -> Json:
        service.is_ours(model)
        card = {"id": service.name, "object": "model"}
        return card | {"created": service.created, "owned_by": "armd"}

    @app.get("/v1/info", response_model=Info, responses=responses())
    async def info() -> Json:
        """What the page asks first."""
        any_order = service.model.any_order
        return {
            "model": service.name,
            "max_length": config.max_length,
            "vocab_size": config.vocab_size,
            "any_order": any_order,
            "chat": service.chat is not None,
            "n_layers": config.n_layers,
            "n_two_stream": config.n_two_stream,
            "parameters": service.parameters,
            "eos": service.tokenizer.eos,
            "limits": {
                "max_streams": min(limits.step_tokens, config.max_length) if any_order else 1,
                "max_body": limits.max_body,
                "queue": limits.queue,
                "slots": limits.slots,
            },
        }

    @app.get("/metrics", response_class=PlainTextResponse, responses=responses())
    async def metrics() -> PlainTextResponse:
        """For Prometheus."""
        active, waiting = len(engine.active), len(engine.waiting)
        text = engine.metrics.text(active=active, waiting=waiting, slots=engine.slots)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _description(app: FastAPI) -> Json:
    """Of all routes, for OpenAPI. FastAPI writes a 422 wherever there is a body; ours is the 400
    that is described."""
    made = app.openapi()
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    return made
