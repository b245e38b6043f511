"""POST /v1/infill: blanks filled in any order, each token sent as it is drawn."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import compress

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..data.template import fill_in, parts
from ..generation.outputs import TokenOutput
from ..generation.plan import DecodePlan
from .errors import Refusal, responses
from .events import Ended, Failed, StepEvent
from .json_route import JsonRoute
from .schema import Infilled, InfillRequest, Json
from .service import OutputStream, Service, any_seed, unless_gone
from .side_work import aside, encoding
from .sse import STREAMED, EventStream, json_answer


@dataclass
class InfillState:
    """One text with blanks, and what was drawn for it."""

    asked: InfillRequest
    tokens: list[int | None]
    """None: blank as yet."""
    known: list[bool]
    plan: DecodePlan
    seed: int
    eos: int | None
    began: float = field(default_factory=time.perf_counter)
    calls: int = 0
    drawn: int = 0
    end: int | None = None
    """Where the first EOS that was generated stands."""


def check_asked(service: Service, asked: InfillRequest) -> None:
    """What is wrong whatever the text's tokens are, and seen at once: before the queue is asked for
    room, because to come again would not mend it."""
    service.is_ours(asked.model)
    said = {
        "text": asked.text is not None,
        "tokens and known": asked.tokens is not None,
        "prompt": asked.prompt is not None,
    }
    if sum(said.values()) != 1:
        raise Refusal(400, f"say what to fill, with one of {', '.join(said)}")
    for name, (value, beside) in {
        "known": (asked.known, asked.tokens),
        "max_tokens": (asked.max_tokens, asked.prompt),
        "blank": (asked.blank, asked.text),
        "blank_length": ("blank_length" in asked.model_fields_set or None, asked.text),
    }.items():
        if value is not None and beside is None:
            raise Refusal(400, f"{name} does nothing here; leave it out", param=name)
    tokens, known = asked.tokens or [], asked.known or []
    if asked.tokens is not None and len(known) != len(tokens):
        raise Refusal(400, f"known has {len(known)} for {len(tokens)} tokens", param="known")
    service.tokenizer.check_count(len(tokens))
    for name in ("text", "prompt"):
        service.tokenizer.check_length(getattr(asked, name) or "", name)


def state_of(service: Service, asked: InfillRequest) -> InfillState:
    """All else that can be wrong is found here, before anything is written."""
    seed, eos = any_seed(asked.seed), None
    if asked.text is not None:
        tokens, known = _template(service, asked, asked.text)
    elif asked.tokens is not None:
        tokens, known = list(asked.tokens), asked.known or []
        service.check_tokens(list(compress(tokens, known)), "tokens")
    else:
        given = service.tokenizer.encode(asked.prompt or "", "prompt")
        most, eos = service.tokenizer.max_length, service.tokenizer.eos
        blanks = asked.max_tokens or max(1, min(64, most - len(given)))
        service.tokenizer.check_count(len(given) + blanks)
        tokens, known = given + [0] * blanks, [True] * len(given) + [False] * blanks
    plan = service.plan(tokens, known, asked, (seed, 0))
    shown = [t if k else None for t, k in zip(tokens, known, strict=True)]
    return InfillState(asked, shown, known, plan, seed, eos)


def _template(service: Service, asked: InfillRequest, text: str) -> tuple[list[int], list[bool]]:
    lengths = asked.blank_length if isinstance(asked.blank_length, list) else [asked.blank_length]
    blanks = len(parts(text, asked.blank)) - 1
    service.tokenizer.check_count(sum(lengths) * (blanks if len(lengths) == 1 else 1))
    options = {"lengths": lengths, "mark": asked.blank}
    return fill_in(text, lambda part: service.tokenizer.encode(part, "text"), **options)


def start_event(service: Service, state: InfillState) -> Json:
    piece, plan = service.tokenizer.piece, state.plan
    return {
        "type": "start",
        "tokens": [*state.tokens],
        "pieces": [None if token is None else piece(token) for token in state.tokens],
        "known": state.known,
        "order": {"position": plan.position, "block": plan.block},
        "steps": plan.steps,
        "seed": state.seed,
    }


def step_event(service: Service, state: InfillState, drawn: StepEvent) -> Json:
    piece = service.tokenizer.piece
    state.calls, state.drawn = state.calls + 1, state.drawn + len(drawn.tokens)

    def one(output: TokenOutput) -> Json:
        state.tokens[output.position] = output.token
        if output.ends and (state.end is None or output.position < state.end):
            state.end = output.position
        alternatives = [
            {"token": r.token, "piece": piece(r.token), "logprob": r.logp}
            for r in output.top_logprobs
        ]
        return {
            "position": output.position,
            "token": output.token,
            "piece": piece(output.token),
            "logprob": output.logp,
            "rivals": alternatives,
        }

    at = [one(output) for output in drawn.tokens]
    seconds = round(drawn.when - state.began, 6)
    return {"type": "step", "step": drawn.step, "at": at, "seconds": seconds}


def end_event(service: Service, state: InfillState, ended: Ended) -> Json:
    """What other streams drew behind the end is no part of the text, and neither is the EOS. Where
    it was cut, the text is what stands before the first hole."""
    tokens, seconds = state.tokens, ended.when - state.began
    if ended.reason == "stop" and state.end is not None:
        tokens = tokens[: state.end + 1]
    hole = tokens.index(None) if None in tokens else len(tokens)
    there = [token for token in tokens[:hole] if token is not None]
    if tokens is not state.tokens:
        there.pop()
    event = {
        "type": "end",
        "text": service.tokenizer.decode(there),
        "tokens": tokens,
        "calls": state.calls,
        "seconds": round(seconds, 6),
        "tokens_per_second": round(state.drawn / max(seconds, 1e-9), 3),
        "finish_reason": ended.reason,
    }
    return event | ({"cut": ended.cut} if ended.cut else {})


async def streamed(
    service: Service, state: InfillState, outputs: OutputStream
) -> AsyncGenerator[list[Json], None]:
    """Events, those that come together in one list."""
    found = [start_event(service, state)]
    while found[-1]["type"] != "end":
        yield found
        found = []
        for _, event in await outputs.next_events():
            if isinstance(event, Failed):
                yield found
                raise Refusal(500, f"the text failed: {event.message}")
            if isinstance(event, StepEvent):
                found.append(step_event(service, state, event))
            else:
                found.append(end_event(service, state, event))
    yield found


async def whole(service: Service, state: InfillState, outputs: OutputStream) -> Json:
    try:
        found = [event async for events in streamed(service, state, outputs) for event in events]
    finally:
        outputs.cancel()
    return {"start": found[0], "steps": found[1:-1], "end": found[-1]}


async def answer(service: Service, asked: InfillRequest, request: Request) -> Response:
    check_asked(service, asked)
    size, longest = len(asked.text or asked.prompt or ""), service.tokenizer.max_length
    with service.room(1):
        state = await encoding(size, lambda: state_of(service, asked), places=longest)
    options = {"seed": state.seed, "eos": state.eos, "top_logprobs": asked.rivals}
    options |= {"client": request.client}
    outputs = service.write([state.plan], asked, prompts=[None], **options)
    if asked.stream:
        return EventStream(request, streamed(service, state, outputs), outputs.cancel)
    found = await unless_gone(request, whole(service, state, outputs))
    return await aside(len(state.tokens) * (1 + asked.rivals), lambda: json_answer(found))


def routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post(
        "/v1/infill",
        responses={
            200: {
                "model": Infilled,
                "content": STREAMED,
                "description": "The text, token by token.",
            },
            **responses(404, 408, 413, 415, 429, 500, 503),
        },
    )
    async def infill(asked: InfillRequest, request: Request) -> Response:
        """Fill the blanks of a text, and tell which token is drawn where and when."""
        return await answer(service, asked, request)

    return router
