"""POST /v1/completions: OpenAI's, for prompts and for the gap between a prompt and a suffix."""

import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ..generation.plan import DecodePlan
from .detokenizer import IncrementalText
from .errors import Refusal, responses
from .events import Event, Failed, StepEvent
from .schema import Completion, CompletionRequest, Json
from .service import OutputStream, Service, any_seed, unless_gone
from .sse import DONE, STREAMED, EventStream


@dataclass
class ChoiceState:
    """One choice on its way."""

    index: int
    incremental: IncrementalText
    prompt: str
    """What is echoed."""
    before: int
    """Characters before the new text, for text_offset."""
    finish: str | None = None
    cut: str | None = None


@dataclass(frozen=True)
class CompletionState:
    """A request, worked out: its choices and their plans."""

    asked: CompletionRequest
    seed: int
    eos: int | None
    texts: list[ChoiceState]
    plans: list[DecodePlan]
    prompt_tokens: int
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def finished(self) -> bool:
        return all(text.finish is not None for text in self.texts)


def completion_of(service: Service, asked: CompletionRequest) -> CompletionState:
    """Everything that can be wrong is found here, before anything is written."""
    service.is_ours(asked.model)
    if asked.echo and asked.logprobs is not None:
        raise Refusal(400, "echo has no logprobs; POST /v1/score has them", param="echo")
    if (asked.best_of or 1) > (asked.n or 1):
        raise Refusal(400, "best_of above n is not offered; ask for n texts", param="best_of")
    tokenizer, count = service.tokenizer, asked.n or 1
    prompts = prompts_of(asked)
    if len(prompts) * count > service.limits.slots + service.limits.queue:
        raise Refusal(
            400,
            f"{len(prompts) * count} texts in one request pass the server's slots and queue of "
            f"{service.limits.slots + service.limits.queue}; ask for fewer",
            param="n",
        )
    suffix = tokenizer.encode(asked.suffix or "", "suffix")
    eos = None if suffix else tokenizer.eos
    seed, blanks = any_seed(asked.seed), asked.max_tokens or 16
    stops = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    texts, plans, tokens = [], [], 0
    for prompt in prompts:
        ids = tokenizer.encode(prompt, "prompt") if isinstance(prompt, str) else prompt
        whole = len(ids) + blanks + len(suffix)
        if whole > tokenizer.max_length:
            raise Refusal(
                400, tokenizer.too_long(whole), param="max_tokens", code="context_length_exceeded"
            )
        shown = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
        known = [True] * len(ids) + [False] * blanks + [True] * len(suffix)
        tokens += len(ids)
        for _ in range(count):
            words = (seed, len(texts))
            plans.append(service.plan([*ids, *[0] * blanks, *suffix], known, asked, words))
            stops_here = tuple(filter(None, stops))
            incremental = IncrementalText(tokenizer, len(ids), stops_here)
            echo = shown if asked.echo else ""
            texts.append(ChoiceState(len(texts), incremental, echo, len(shown)))
    return CompletionState(asked, seed, eos, texts, plans, tokens)


def prompts_of(asked: CompletionRequest) -> list[str | list[int]]:
    prompt = asked.prompt if asked.prompt is not None else ""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and not isinstance(prompt[0], int):
        return list(prompt)  # type: ignore[arg-type]
    return [prompt]  # type: ignore[list-item]


def begin(service: Service, state: CompletionState) -> OutputStream:
    options = {"eos": state.eos, "top_logprobs": state.asked.logprobs or 0}
    return service.write(state.plans, state.asked, seed=state.seed, **options)


def grow(
    state: CompletionState, outputs: OutputStream, index: int, event: Event
) -> ChoiceState | None:
    """The text that has grown or ended; None if it had before."""
    text = state.texts[index]
    if text.finish is not None:
        return None
    if isinstance(event, Failed):
        raise Refusal(500, f"the text failed: {event.message}")
    if isinstance(event, StepEvent):
        text.incremental.add(event)
        if text.incremental.stopped:
            text.finish = "stop"
            outputs.cancel(index)
    else:
        text.incremental.flush()
        text.finish, text.cut = ("stop" if text.incremental.stopped else event.reason), event.cut
    return text


def choice_of(
    service: Service, state: CompletionState, text: ChoiceState, shown: str, part: slice
) -> Json:
    choice: Json = {"index": text.index, "text": shown, "logprobs": None}
    if state.asked.logprobs is not None:
        incremental, piece = text.incremental, service.tokenizer.piece
        read, offsets = incremental.read[part], incremental.offsets[part]
        choice["logprobs"] = {
            "tokens": [piece(one.token) for one in read],
            "token_logprobs": [one.logp for one in read],
            "top_logprobs": [{piece(r.token): r.logp for r in one.top_logprobs} for one in read]
            if state.asked.logprobs
            else None,
            "text_offset": [text.before + offset for offset in offsets],
        }
    choice["finish_reason"] = text.finish
    if text.cut:
        choice["cut"] = text.cut
    return choice


def envelope(service: Service, state: CompletionState, choices: list[Json], *, usage: bool) -> Json:
    found: Json = {"id": state.id, "object": "text_completion", "created": state.created}
    found |= {"model": service.name, "choices": choices}
    if usage:
        new = sum(len(text.incremental.read) for text in state.texts)
        counts = {"prompt_tokens": state.prompt_tokens, "completion_tokens": new}
        found["usage"] = counts | {"total_tokens": state.prompt_tokens + new}
    return found


async def whole(service: Service, state: CompletionState) -> Json:
    outputs = begin(service, state)
    try:
        while not state.finished:
            for index, event in await outputs.next_events():
                grow(state, outputs, index, event)
    finally:
        outputs.cancel()
    choices = [
        choice_of(service, state, text, text.prompt + text.incremental.text, slice(None))
        for text in state.texts
    ]
    return envelope(service, state, choices, usage=True)


async def streamed(
    service: Service, state: CompletionState, outputs: OutputStream
) -> AsyncGenerator[list[Json | str], None]:
    """A chunk whenever more of a text can be read, and one that says why it ended."""
    for text in state.texts:
        if text.prompt:
            echo = choice_of(service, state, text, text.prompt, slice(0, 0))
            yield [envelope(service, state, [echo], usage=False)]
    while not state.finished:
        chunks = []
        for index, event in await outputs.next_events():
            if isinstance(event, Failed):
                yield chunks
            text = grow(state, outputs, index, event)
            chunk = text and chunk_of(service, state, text)
            chunks += [chunk] if chunk else []
        yield chunks
    options = state.asked.stream_options
    if options is not None and options.include_usage:
        yield [envelope(service, state, [], usage=True)]
    yield [DONE]


def chunk_of(service: Service, state: CompletionState, text: ChoiceState) -> Json | None:
    """What is new of a text; None if nothing of it can be read yet."""
    last = text.finish is not None
    shown, part = text.incremental.take_new(last=last)
    if not (shown or last):
        return None
    return envelope(service, state, [choice_of(service, state, text, shown, part)], usage=False)


async def answer(service: Service, asked: CompletionRequest, request: Request) -> Response:
    state = completion_of(service, asked)
    if not asked.stream:
        return JSONResponse(await unless_gone(request, whole(service, state)))
    outputs = begin(service, state)  # here, so that a full queue is a 429, no broken stream
    return EventStream(request, streamed(service, state, outputs), outputs.cancel)


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions",
        responses={
            200: {"model": Completion, "content": STREAMED, "description": "The texts."},
            **responses(404, 408, 413, 415, 429, 500, 503),
        },
    )
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        """Continue prompts, or fill the gap before a suffix."""
        return await answer(service, asked, request)

    return router
