"""POST /v1/score, /v1/order and /v1/tokenize: how probable is a text; what does an order look like;
what are a text's tokens?"""

from math import exp

import torch
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..errors import ArmdError
from ..model import order as orders
from ..model.order import Order
from ..runtime.seeds import seeded
from .errors import Refusal, responses
from .json_route import JsonRoute
from .schema import (
    GivenOrder,
    Json,
    OrderRequest,
    OrderShape,
    Scored,
    ScoreRequest,
    Tokenized,
    TokenizeRequest,
)
from .service import Service, any_seed, unless_gone
from .side_work import aside, encoding
from .sse import json_answer


def order_of(asked: ScoreRequest, n: int) -> Order:
    if isinstance(asked.order, GivenOrder):
        whole = max([*asked.order.position, *asked.order.block, 0])
        if whole >= 2**31 or min([*asked.order.position, *asked.order.block, 0]) < 0:
            raise ArmdError("positions and blocks are numbers from 0 on")
        given = (asked.order.position, asked.order.block)
        if len(given[0]) != len(given[1]) or not given[0]:
            raise ArmdError("an order has a position and a block for each token; name both")
        return Order(*(torch.tensor(numbers, dtype=torch.long) for numbers in given))
    generator = seeded(any_seed(asked.seed), "order")
    return orders.named(asked.order, n, streams=asked.streams, generator=generator)


def shape_of(order: Order) -> Json:
    return {"position": order.position.tolist(), "block": order.block.tolist()}


async def score(service: Service, asked: ScoreRequest) -> Response:
    """One pass over the whole text, together with others that wait."""
    service.is_ours(asked.model)
    if (asked.text is None) == (asked.tokens is None):
        raise Refusal(400, "say what to score: a text, or its tokens")
    if asked.streams > 1 and asked.order != "strided":
        raise Refusal(400, "streams needs the order strided; leave it out", param="streams")
    ids = asked.tokens
    if ids is None:
        text = asked.text or ""
        service.tokenizer.check_length(text, "text")  # no room in the queue would mend it
        with service.room(1):
            ids = await encoding(len(text), lambda: service.tokenizer.encode(text, "text"))
    service.tokenizer.check_count(len(ids))
    if not ids:
        raise Refusal(400, "there is nothing to score; send at least one token")
    service.check_tokens(ids, "text" if asked.tokens is None else "tokens")
    order = order_of(asked, len(ids))
    logp = (await service.score(ids, order)).logp
    total = sum(logp)

    def found() -> Response:
        return json_answer(
            {
                "log_likelihood": total,
                "tokens": ids,
                "pieces": [service.tokenizer.piece(token) for token in ids],
                "logprobs": logp,
                "perplexity": exp(min(-total / len(logp), 700)),
                "order": shape_of(order),
            }
        )

    return await aside(4 * len(ids), found)


def drawn_order(asked: OrderRequest) -> Order:
    n, generator = asked.length, seeded(any_seed(asked.seed), "order")
    known = None if asked.known is None else torch.tensor(asked.known, dtype=torch.bool)
    if asked.kind == "infill" and known is not None and len(known) != n:
        raise ArmdError(f"known has {len(known)} entries for a length of {n}; make them equal")
    options = {"streams": asked.streams, "steps": asked.steps, "rho": asked.rho, "known": known}
    return orders.named(asked.kind, n, **options, generator=generator)


def routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    usual = responses(408, 413, 415, 500)

    @router.post(
        "/v1/score", response_model=Scored, responses=responses(404, 408, 413, 415, 429, 500, 503)
    )
    async def score_route(asked: ScoreRequest, request: Request) -> Response:
        """The exact log-likelihood of a text under an order, in nats."""
        return await unless_gone(request, score(service, asked))

    @router.post("/v1/order", response_model=OrderShape, responses=usual)
    async def order_route(asked: OrderRequest, _: Request) -> Json:
        """An order, to be drawn."""
        return shape_of(drawn_order(asked))

    @router.post(
        "/v1/tokenize", response_model=Tokenized, responses=responses(408, 413, 415, 429, 500, 503)
    )
    async def tokenize_route(asked: TokenizeRequest, _: Request) -> Response:
        """A text's tokens."""
        tokenizer = service.tokenizer
        encode = tokenizer.encode_suffix if asked.continues else tokenizer.encode

        def tokens() -> Response:
            ids = encode(asked.text, "text")
            pieces = [tokenizer.piece(token) for token in ids]
            return json_answer({"tokens": ids, "pieces": pieces})

        tokenizer.check_length(asked.text, "text")
        with service.room(1):
            return await encoding(len(asked.text), tokens)

    return router
