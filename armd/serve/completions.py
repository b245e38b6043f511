"""POST /v1/completions: OpenAI's, for prompts and for the gap between a prompt and a suffix."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..generation.outputs import TokenOutput
from ..model.order import left_to_right
from .completion_state import (
    ChoiceState,
    CompletionState,
    Form,
    check_asked,
    completion_of,
    new_tokens,
    prompts_of,
)
from .detokenizer import MOST_PENDING, IncrementalText
from .errors import Refusal, responses
from .events import Event, Failed, StepEvent
from .json_route import JsonRoute
from .schema import Completion, CompletionRequest, Json
from .service import OutputStream, Service, unless_gone
from .side_work import aside, encoding
from .sse import DONE, STREAMED, EventStream, dumped


async def read_prompts(service: Service, state: CompletionState, *, begun: bool) -> None:
    """Fill in what is echoed; with log-probabilities, those of the prompt's own tokens, left to
    right, in one pass. `begun`: its texts have their places in the queue already."""
    scored: dict[tuple[int, ...], list[TokenOutput]] = {}
    texts = state.texts[:: state.asked.n or 1]  # those of one prompt have one echo
    size = sum(len(text.prompt) for text in texts)
    for text in texts:
        ids, key, echo = text.prompt, tuple(text.prompt), text.echo
        if echo is None:
            return
        if key not in scored:
            logp, top = [0.0] * len(ids), [()] * len(ids)
            if ids and state.asked.logprobs is not None:
                order, count = left_to_right(len(ids)), state.asked.logprobs
                options = {"deadline": state.deadline, "admitted": begun}
                scores = await service.score(ids, order, top_logprobs=count, **options)
                logp, top = scores.logp, scores.top
            scored[key] = list(map(TokenOutput, range(len(ids)), ids, logp, top))
        await aside(size * MOST_PENDING, partial(read_whole, echo, scored[key]))


def read_whole(text: IncrementalText, tokens: Sequence[TokenOutput]) -> None:
    text.add(tokens)
    text.flush()


def begin(service: Service, state: CompletionState, client: object) -> OutputStream:
    options = {"eos": state.eos, "top_logprobs": state.asked.logprobs or 0, "seed": state.seed}
    options |= {"prompts": state.shared, "deadline": state.deadline, "client": client}
    return service.write(state.plans, state.asked, **options)


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
        text.incremental.add(event.tokens)
        if text.incremental.stopped:
            text.finish = "stop"
            outputs.complete(index)
    else:
        text.incremental.flush()
        text.finish, text.cut = ("stop" if text.incremental.stopped else event.reason), event.cut
    return text


def ending(text: ChoiceState) -> Json:
    """Why a choice ended, if it has."""
    return {"finish_reason": text.finish} | ({"cut": text.cut} if text.cut else {})


def text_choice(
    service: Service,
    state: CompletionState,
    text: ChoiceState,
    shown: str,
    tokens: Sequence[TokenOutput],
) -> Json:
    choice: Json = {"index": text.index, "text": shown, "logprobs": None}
    if state.asked.logprobs is not None:
        choice["logprobs"] = {
            "tokens": [service.tokenizer.name(one.token) for one in tokens],
            "token_logprobs": [one.logp for one in tokens],
            "top_logprobs": [top_table(service, one) for one in tokens]
            if state.asked.logprobs
            else None,
            "text_offset": [offset_of(text, one) for one in tokens],
        }
    return choice | ending(text)


def offset_of(text: ChoiceState, one: TokenOutput) -> int:
    """Where a token begins in the prompt and what follows it."""
    new = one.position - text.incremental.start
    if text.echo is not None and new < 0:
        return text.echo.offsets[one.position]
    before = text.before if text.echo is None else len(text.echo.text)
    return before + text.incremental.offsets[new]


def top_table(service: Service, one: TokenOutput) -> dict[str, float]:
    """The most probable tokens by name; of several with one name the most probable."""
    table: dict[str, float] = {}
    for top in one.top_logprobs:
        table.setdefault(service.tokenizer.name(top.token), top.logp)
    return table


TEXTS = Form("cmpl-", "text_completion", "text_completion", text_choice, text_choice)


def envelope(
    service: Service, state: CompletionState, choices: list[Json], *, whole: bool, usage: bool
) -> Json:
    form = state.form
    found: Json = {"id": form.prefix + state.id, "object": form.whole if whole else form.chunk}
    found |= {"created": state.created, "model": service.name, "choices": choices}
    if usage:
        new = sum(len(text.incremental.read) for text in state.texts)
        given = sum(len(text.prompt) for text in state.texts[:: state.asked.n or 1])
        counts = {"prompt_tokens": given, "completion_tokens": new}
        found["usage"] = counts | {"total_tokens": given + new}
    return found


async def whole(service: Service, state: CompletionState, client: object) -> bytes:
    await read_prompts(service, state, begun=False)
    outputs = begin(service, state, client)
    try:
        while not state.finished:
            for index, event in await outputs.next_events():
                grow(state, outputs, index, event)
    finally:
        outputs.cancel()
    parts = [(text, [p for p in (text.echo, text.incremental) if p]) for text in state.texts]

    def choice(text: ChoiceState, parts: Sequence[IncrementalText]) -> bytes:
        shown, tokens = "".join(p.text for p in parts), [one for p in parts for one in p.read]
        return dumped(state.form.choice(service, state, text, shown, tokens))

    def answer() -> bytes:
        # each by itself: while JSON is being dumped no other thread runs
        choices = b",".join(choice(*one) for one in parts)
        found = dumped(envelope(service, state, [], whole=True, usage=True))
        return found.replace(b'"choices":[]', b'"choices":[%b]' % choices, 1)

    return await aside(state.entries(sum(len(p.read) for _, both in parts for p in both)), answer)


async def streamed(
    service: Service, state: CompletionState, outputs: OutputStream
) -> AsyncGenerator[list[Json | bytes | str], None]:
    """A chunk whenever more of a text can be read, and one that says why it ended."""

    async def chunks(
        new: Sequence[tuple[ChoiceState, str, Sequence[TokenOutput]]], size: int | None = None
    ) -> list[Json | bytes | str]:
        def chunk(text: ChoiceState, shown: str, tokens: Sequence[TokenOutput]) -> bytes:
            choice = state.form.delta(service, state, text, shown, tokens)
            return dumped(envelope(service, state, [choice], whole=False, usage=False))

        if size is None:
            size = sum(len(tokens) for _, _, tokens in new)
        return await aside(state.entries(size), lambda: [chunk(*one) for one in new])

    async def new_parts(grown: dict[int, ChoiceState]) -> list[Json | bytes | str]:
        new = [
            (text, *text.incremental.take_new(last=bool(text.finish))) for text in grown.values()
        ]
        shown = [
            (text, shown, text.incremental.read[part])
            for text, shown, part in new
            if shown or text.finish
        ]
        return await chunks(shown)

    await read_prompts(service, state, begun=bool(state.plans))
    echoed = sum(len(text.echo.read) for text in state.texts if text.echo)
    for text in state.texts:
        if state.form.opens or text.echo or text.finish:
            echo = text.echo
            opening = (text, echo.text, echo.read) if echo else (text, "", ())
            yield await chunks([opening], echoed)
    while not state.finished:
        grown: dict[int, ChoiceState] = {}  # tokens that came together go out together
        for index, event in await outputs.next_events():
            if isinstance(event, Failed):
                yield await new_parts(grown)
            if text := grow(state, outputs, index, event):
                grown[index] = text
        yield await new_parts(grown)
    options = state.asked.stream_options
    if options is not None and options.include_usage:
        yield [envelope(service, state, [], whole=False, usage=True)]
    yield [DONE]


async def answer(
    service: Service, asked: CompletionRequest, request: Request, form: Form = TEXTS
) -> Response:
    prompts, longest, new = prompts_of(asked), service.tokenizer.max_length, new_tokens(asked)
    count = len(prompts) * (asked.n or 1)
    service.takes(count)
    check_asked(service, asked)
    characters = sum(len(text) for text in (*prompts, asked.suffix) if isinstance(text, str))
    places = count * min(longest, max(map(len, prompts)) + new)
    with service.room(count):
        state = await encoding(characters, lambda: completion_of(service, asked, form), places)
    if not asked.stream:
        found = await unless_gone(request, whole(service, state, request.client))
        return Response(found, media_type="application/json")
    # here, so that a full queue is a 429, no broken stream
    outputs = begin(service, state, request.client)
    return EventStream(request, streamed(service, state, outputs), outputs.cancel)


def routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

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
