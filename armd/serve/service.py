"""The service: the model, its tokenizer and its engine, and how HTTP requests reach the engine."""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import torch
from fastapi import Request

from ..data.chat_template import ChatTemplate
from ..data.tokenizer import TextTokenizer
from ..errors import ArmdError
from ..generation.plan import DecodePlan, check, completing, strided
from ..model import order as orders
from ..model.modeling_armd import ArmdLM
from ..model.order import Order
from ..model.sampling import Sampling
from ..runtime.seeds import generators_per_row, seeded
from .detokenizer import ServerTokenizer
from .engine import Engine
from .errors import Gone, Refusal
from .events import Callback, Event
from .limits import Limits
from .outbox import call
from .prefill import SharedPrompt
from .requests import GenerationRequest, ScheduledRequest
from .schema import Choosing
from .score_batches import ScoreJob, TokenScores
from .templates import TemplateQueue

Answer = TypeVar("Answer")


class Service:
    """A model, its tokenizer and its engine."""

    def __init__(
        self,
        model: ArmdLM,
        tokenizer: TextTokenizer,
        *,
        name: str,
        parameters: int = 0,
        limits: Limits | None = None,
        chat: ChatTemplate | None = None,
    ) -> None:
        self.model, self.limits = model, limits or Limits()
        self.chat = TemplateQueue(chat) if chat else None
        self.name = name.encode("utf-8", "replace").decode()  # a folder's name may be any bytes
        self.tokenizer = ServerTokenizer(tokenizer, model.config.max_length)
        self.created = int(time.time())
        self.parameters = parameters  # of the model as it was before its weights were packed
        self.coming = 0  # sequences of requests that are still being tokenised and planned
        self.loop: asyncio.AbstractEventLoop | None = None
        self.engine = Engine(
            model,
            slots=self.limits.slots,
            queue=self.limits.queue,
            threads=self.limits.threads,
            deliver=self._deliver,
        ).start()

    def stop(self, grace: float = 0.0) -> None:
        """Refuse new requests; after `grace` seconds end the running ones."""
        self.engine.stop(grace)
        if self.chat and grace and self.loop and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.call_later, grace, self.chat.close)
        elif self.chat:
            self.chat.close()

    def _deliver(self, outbox: list[tuple[Callback, Event]]) -> None:
        """From the engine's thread to the server's."""
        loop = self.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call, outbox)

    def takes(self, count: int) -> None:
        """Raise if so many texts never fit into one request."""
        most = self.limits.slots + self.limits.queue
        if count > most:
            reason = f"{count} texts in one request pass the server's slots and queue of {most}"
            raise Refusal(400, f"{reason}; ask for fewer", param="n")

    @contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Reserve places in the queue while a request for so many sequences is tokenised and
        planned. Raises where there are too few, other reservations included: no work is done for a
        request that will be refused, and the work under way is bounded by the queue."""
        self.engine.check(count + self.coming)
        self.coming += count
        try:
            yield
        finally:
            self.coming -= count

    def check_tokens(self, tokens: Sequence[int], param: str) -> None:
        """Raise if one is none of the model's."""
        if max(tokens, default=0) >= (vocabulary := self.model.config.vocab_size):
            reason = f"token {max(tokens)} is not one of the vocabulary of {vocabulary}"
            raise Refusal(400, reason, param=param)

    def plan(
        self, tokens: Sequence[int], known: Sequence[bool], asked: Choosing, words: tuple[Any, ...]
    ) -> DecodePlan:
        """How the model will generate it; `words` seed a random order."""
        self.tokenizer.check_count(len(tokens))
        blanks = len(known) - sum(known)
        if not blanks:
            raise ArmdError("nothing is blank; leave room for tokens to be written")
        plan = completing(tokens, known, *blank_order(asked, blanks, words))
        check(self.model, plan)
        most = max(end - start for start, end in pairwise(plan.step_ends))
        if most > self.limits.step_tokens:
            reason = f"a step of {most} tokens is more than the {self.limits.step_tokens} of this "
            raise Refusal(400, reason + "server; ask for fewer streams, or for more steps")
        return plan

    def sampling(self, asked: Choosing) -> Sampling:
        """At temperature 0 filters have nothing to do, and clients send them all the same."""
        filters = {}
        if asked.temperature > 0:
            top_p = None if asked.top_p == 1 else asked.top_p
            filters = {"top_p": top_p, "top_k": asked.top_k, "min_p": asked.min_p}
        penalty = asked.repetition_penalty
        return Sampling(asked.temperature, repetition_penalty=penalty, **filters)

    def write(
        self,
        plans: Sequence[DecodePlan],
        asked: Choosing,
        *,
        prompts: Sequence[SharedPrompt | None],
        seed: int,
        eos: int | None,
        top_logprobs: int = 0,
        deadline: float | None = None,
        client: object = None,
    ) -> "OutputStream":
        """Have sequences generated, the i-th from the i-th generator of the seed, as armd.generate
        does with rows. `prompts`: which of them are given the same."""
        outputs = OutputStream(self.engine)
        generators = generators_per_row(torch.Generator().manual_seed(seed), len(plans))
        of_each = zip(plans, generators, prompts, strict=True)
        requests = [
            GenerationRequest(
                plan,
                self.sampling(asked),
                generator,
                outputs.callback(index),
                eos=eos,
                top_logprobs=top_logprobs,
                deadline=deadline or time.monotonic() + self.limits.timeout,
                prompt=prompt,
            )
            for index, (plan, generator, prompt) in enumerate(of_each)
        ]
        # wake the engine on the next tick of the event loop: it must not compete for the GIL while
        # this request is being answered
        later = asyncio.get_running_loop().call_soon
        outputs.scheduled = self.engine.submit(requests, client=client, later=later)
        return outputs

    async def score(
        self,
        tokens: list[int],
        order: Order,
        *,
        top_logprobs: int = 0,
        deadline: float | None = None,
        admitted: bool = False,
    ) -> TokenScores:
        """log p of each token of a text, between two passes of the texts being generated."""
        self.tokenizer.check_count(len(tokens))
        if len(order) != len(tokens):
            raise ArmdError(f"the order is for {len(order)} tokens, the text has {len(tokens)}")
        self.model.check_order(order)
        future = self.engine.score(ScoreJob(tokens, order, top_logprobs), admitted=admitted)
        seconds = deadline - time.monotonic() if deadline else self.limits.timeout
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            raise Refusal(503, "no time for it; try again later", code="timeout") from None

    def is_ours(self, model: str | None) -> None:
        if model not in (None, self.name):
            message = f"no model '{model}' here; this is {self.name}"
            raise Refusal(404, message, param="model", code="model_not_found")


class OutputStream:
    """The events of the sequences of one HTTP request, as they come."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[tuple[int, Event]] = []
        self.some = asyncio.Event()
        self.scheduled: list[ScheduledRequest] = []

    def callback(self, index: int) -> Callback:
        def take(event: Event) -> None:
            self.events.append((index, event))
            self.some.set()

        return take

    def cancel(self) -> None:
        """Free the slots of all sequences."""
        self.engine.cancel(self.scheduled)

    def complete(self, index: int) -> None:
        """Free the slot of a sequence whose text came to a stop string."""
        self.scheduled[index].complete = True
        self.engine.cancel([self.scheduled[index]])

    async def next_events(self) -> list[tuple[int, Event]]:
        """The events since the last call; waits for at least one."""
        await self.some.wait()
        self.some.clear()
        events, self.events = self.events, []
        return events


def any_seed(seed: int | None) -> int:
    return secrets.randbelow(2**31) if seed is None else seed


def blank_order(asked: Choosing, n: int, words: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    """The order of n blanks that a request names, positions and blocks; `streams` of them a
    call."""
    if asked.order in (None, "left_to_right", "strided"):
        return strided(n, asked.streams)
    if isinstance(asked.order, list):
        position = asked.order
        if len(position) != n:
            raise ArmdError(f"order names {len(position)} new tokens, there are {n}; name each")
    else:
        drawn = orders.named(asked.order, n, generator=seeded(*words, "order"))
        position = drawn.position.tolist()
    order = Order(torch.tensor(position), torch.arange(n) // asked.streams)
    return order.position.tolist(), order.block.tolist()


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer, or Gone as soon as the client leaves; the work is then broken off."""
    worker, left = asyncio.current_task(), False

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        if worker is not None:
            worker.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if left and worker is not None and worker.uncancel() == 0:
            raise Gone from None
        raise
    finally:
        watcher.cancel()
