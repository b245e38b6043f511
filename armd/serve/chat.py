"""POST /v1/chat/completions: OpenAI's, where the model's tokenizer has a chat template."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..generation.outputs import TokenOutput
from .chat_schema import ChatCompletion, ChatRequest
from .completion_state import ChoiceState, CompletionState, Form
from .completions import answer, ending
from .errors import Refusal, responses
from .json_route import JsonRoute
from .schema import Choosing, CompletionRequest, Json
from .service import Service, unless_gone
from .side_work import encoding
from .sse import STREAMED

SAME = {*Choosing.model_fields, "model", "n", "stop", "stream", "stream_options"}
ALL = 2**31
"""More tokens than any model takes: cut to what fits. An order names all there shall be."""


async def as_completion(service: Service, asked: ChatRequest) -> CompletionRequest:
    """The same request for the text that the chat template makes of the messages."""
    if service.chat is None:
        raise Refusal(
            404,
            f"{service.name} has no chat template, so it was not taught to answer messages; POST "
            "/v1/completions continues a text",
            code="no_chat_template",
        )
    service.is_ours(asked.model)
    if asked.top_logprobs and not asked.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    service.takes(asked.n or 1)
    with service.room(asked.n or 1):
        text = await service.chat.text([message.plain for message in asked.messages])
        prompt = await encoding(len(text), lambda: service.tokenizer.encode(text, "messages"))
    wanted = {name: getattr(asked, name) for name in SAME}
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    longest = max(1, len(asked.order)) if isinstance(asked.order, list) else ALL
    return CompletionRequest.model_construct(
        **wanted,
        prompt=prompt,
        max_tokens=asked.max_completion_tokens or asked.max_tokens or longest,
        logprobs=logprobs,
    )


def message(
    service: Service,
    state: CompletionState,
    text: ChoiceState,
    shown: str,
    tokens: Sequence[TokenOutput],
) -> Json:
    choice = {"index": text.index, "message": {"role": "assistant", "content": shown}}
    return choice | {"logprobs": logprobs(service, state, tokens)} | ending(text)


def delta(
    service: Service,
    state: CompletionState,
    text: ChoiceState,
    shown: str,
    tokens: Sequence[TokenOutput],
) -> Json:
    new = {"content": shown} if text.incremental.read else {"role": "assistant", "content": shown}
    choice = {"index": text.index, "delta": new}
    return choice | {"logprobs": logprobs(service, state, tokens)} | ending(text)


def logprobs(
    service: Service, state: CompletionState, tokens: Sequence[TokenOutput]
) -> Json | None:
    if state.asked.logprobs is None:
        return None

    def named(token: int, logp: float) -> Json:
        reader = service.tokenizer
        return {"token": reader.name(token), "logprob": logp, "bytes": list(reader.bytes(token))}

    return {
        "content": [
            named(one.token, one.logp) | {"top_logprobs": [named(*top) for top in one.top_logprobs]}
            for one in tokens
        ]
    }


CHAT = Form(
    "chatcmpl-",
    "chat.completion",
    "chat.completion.chunk",
    message,
    delta,
    opens=True,
    continues=False,
)


def routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post(
        "/v1/chat/completions",
        responses={
            200: {"model": ChatCompletion, "content": STREAMED, "description": "The answers."},
            **responses(404, 408, 413, 415, 429, 500, 503),
        },
    )
    async def chat(asked: ChatRequest, request: Request) -> Response:
        """Answer messages, where the model has a chat template; else 404."""
        completion = await unless_gone(request, as_completion(service, asked))
        return await answer(service, completion, request, CHAT)

    return router
