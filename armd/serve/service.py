"""The service: the model, its reader and its engine, and how a request's texts reach the engine."""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from fastapi import Request

from ..data.tokenizer import TextTokenizer
from ..errors import ArmdError
from ..generation.decode_plan import Course, completing
from ..generation.sampling import Sampling
from ..generation.state import spread
from ..model import order as orders
from ..model.modeling_armd import ArmdLM
from ..model.order import Order
from ..runtime.seeds import seeded
from .detokenizer import ServerTokenizer
from .engine import Callback, Engine, GenerationRequest, ScheduledRequest
from .errors import Gone, Refusal
from .events import Event
from .schema import Choosing
from .tracks import check_course

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Limits:
    """What the server takes."""

    slots: int = 8
    """Texts decoded together."""
    queue: int = 64
    """Texts that may wait for a slot."""
    max_body: int = 1 << 20
    """Bytes of a request."""
    timeout: float = 120.0
    """Seconds after which a text ends with what it has."""
    threads: int | None = None
    """CPU threads of a pass; None: as many as the model is worth."""


class Service:
    """One model, ready to be asked."""

    def __init__(
        self,
        model: ArmdLM,
        tokenizer: TextTokenizer,
        *,
        name: str,
        parameters: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.model, self.name, self.limits = model, name, limits or Limits()
        self.tokenizer = ServerTokenizer(tokenizer, model.config.max_length)
        self.created = int(time.time())
        self.parameters = parameters  # of the model as it was before its weights were packed
        self.loop: asyncio.AbstractEventLoop | None = None
        self.engine = Engine(
            model,
            slots=self.limits.slots,
            queue=self.limits.queue,
            threads=self.limits.threads,
            deliver=self._deliver,
        ).start()

    def _deliver(self, told: list[tuple[Callback, Event]]) -> None:
        """From the engine's thread to the server's."""
        loop = self.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_tell, told)

    def course(
        self, tokens: Sequence[int], known: Sequence[bool], asked: Choosing, words: tuple[Any, ...]
    ) -> Course:
        """The text as the model will write it; `words` seed a random order."""
        if len(tokens) > self.model.config.max_length:
            raise Refusal(400, self.tokenizer.too_long(len(tokens)), code="context_length_exceeded")
        blanks = len(known) - sum(known)
        if not blanks:
            raise ArmdError("nothing is blank; leave room for tokens to be written")
        course = completing(tokens, known, *blank_order(asked, blanks, words))
        check_course(self.model, course)
        return course

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
        courses: Sequence[Course],
        asked: Choosing,
        *,
        seed: int,
        eos: int | None,
        rivals: int = 0,
    ) -> "OutputStream":
        """Have texts written, text i from the i-th generator of the seed, as armd.generate does
        with rows."""
        outputs = OutputStream(self.engine)
        generators = spread(torch.Generator().manual_seed(seed), len(courses))
        jobs = [
            GenerationRequest(
                course,
                self.sampling(asked),
                generator,
                outputs.callback(index),
                eos=eos,
                rivals=rivals,
                deadline=time.monotonic() + self.limits.timeout,
            )
            for index, (course, generator) in enumerate(zip(courses, generators, strict=True))
        ]
        # the engine starts when this thread has said what it has to say, and not in between
        outputs.scheduled = self.engine.submit(jobs, later=asyncio.get_running_loop().call_soon)
        return outputs

    def is_ours(self, model: str | None) -> None:
        if model not in (None, self.name):
            message = f"no model '{model}' here; this is {self.name}"
            raise Refusal(404, message, param="model", code="model_not_found")


class OutputStream:
    """What the engine tells about the texts of one request, as it comes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[tuple[int, Event]] = []
        self.some = asyncio.Event()
        self.scheduled: list[ScheduledRequest] = []

    def callback(self, index: int) -> Callback:
        def hear(event: Event) -> None:
            self.events.append((index, event))
            self.some.set()

        return hear

    def cancel(self, index: int | None = None) -> None:
        """Nobody needs text `index` any more, or all of them: their slots become free."""
        self.engine.cancel(self.scheduled if index is None else [self.scheduled[index]])

    async def next_events(self) -> list[tuple[int, Event]]:
        """What arrived since the last time; whoever asks knows which texts have ended."""
        await self.some.wait()
        self.some.clear()
        events, self.events = self.events, []
        return events


def _tell(told: list[tuple[Callback, Event]]) -> None:
    for callback, event in told:
        callback(event)


def any_seed(seed: int | None) -> int:
    return secrets.randbelow(2**31) if seed is None else seed


def blank_order(asked: Choosing, n: int, words: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    """The order of n blanks that a request names, positions and blocks; `streams` of them a
    call."""
    if asked.order in (None, "left_to_right", "strided"):
        return _strided(n, asked.streams)
    if isinstance(asked.order, list):
        position = asked.order
        if len(position) != n:
            raise ArmdError(f"order names {len(position)} new tokens, there are {n}; name each")
    else:
        position = orders.random(n, generator=seeded(*words, "order")).position.tolist()
    return _plain(Order(torch.tensor(position), torch.arange(n) // asked.streams))


@lru_cache(256)
def _strided(n: int, streams: int) -> tuple[list[int], list[int]]:
    """The same few are asked for again and again."""
    return _plain(orders.strided(n, streams))


def _plain(order: Order) -> tuple[list[int], list[int]]:
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
