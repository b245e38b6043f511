"""The engine: one thread that writes all texts that were asked for, one pass for all of them.

It has a number of places, each with a cache of its own. Between two passes finished and abandoned
texts leave their places, and waiting ones take them: their prompts enter with the next pass, beside
the blocks of the others. A text's draws are its own, and a pass shares nothing but products row by
row, so everyone gets the text they would get alone.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..generation.decode_plan import Course
from ..generation.kv_cache import Cache
from ..generation.native_step import Pen
from ..generation.sampling import Sampling
from ..model.modeling_armd import ArmdLM
from ..native.library import release_threads
from ..native.packed import FastLM
from .cache_pool import Pool, threads_for
from .events import Drawn, Ended, Event, Failed, Landed
from .metrics import Metrics
from .tracks import Track, step_together

Listener = Callable[[Event], None]

PACE = 0.002
"""Seconds that what was drawn may wait for the next pass, so that a fast model's tokens travel
together. The first of a text, and its end, go at once; nothing waits for an errand or a prompt."""


class Busy(Exception):
    """The queue is full; worth another try after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


class Stopping(Exception):
    """The server takes nothing new."""


@dataclass(frozen=True)
class Job:
    """One text to be written, and who is told."""

    course: Course
    sampling: Sampling
    generator: torch.Generator
    listener: Listener
    eos: int | None = None
    rivals: int = 0
    """How many of the most probable tokens to report with each token drawn."""
    deadline: float = math.inf
    """time.monotonic() after which it ends with what it has."""


@dataclass(eq=False)
class Ticket:
    """A job on its way."""

    job: Job
    came: float
    track: Track | None = None
    place: Cache | None = None
    gone: bool = False
    """Nobody waits for it any more."""


def _now(work: Callable[[], None]) -> None:
    work()


class Engine:
    """Write texts in a thread of its own. `deliver` takes what is to be told, pass after pass or of
    some passes together, as (listener, event) pairs, in that thread; left out, the listeners are
    called there."""

    def __init__(
        self,
        model: ArmdLM,
        *,
        places: int = 8,
        queue: int = 64,
        threads: int | None = None,
        deliver: Callable[[list[tuple[Listener, Event]]], None] | None = None,
    ) -> None:
        self.model, self.places, self.queue = model.eval(), places, queue
        self.pool = Pool.of(model, places)
        self.pen = None
        if isinstance(model, FastLM) and model.whole:
            self.pen = Pen(model, self.pool.free[0])
        self.deliver = deliver or (lambda told: [listen(event) for listen, event in told])
        self.metrics = Metrics()
        self.waiting: deque[Ticket] = deque()
        self.errands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.active: list[Ticket] = []
        self.told: list[tuple[Listener, Event]] = []
        self.urgent, self.last = False, 0.0
        self.wake = threading.Condition()
        self.stopping, self.cut_at = False, math.inf
        self.threads = threads or threads_for(model)
        self.thread = threading.Thread(target=self._run, name="armd-engine", daemon=True)

    def start(self) -> "Engine":
        release_threads()  # the engine's own will be the only ones
        self.thread.start()
        return self

    def submit(
        self, jobs: Sequence[Job], *, later: Callable[[Callable[[], None]], object] = _now
    ) -> list[Ticket]:
        """All of them, or none: raises Busy where the queue has no room, Stopping at the end. With
        `later`, an engine at rest is woken by what is handed to it."""
        with self.wake:
            self._check(len(jobs))
            tickets = [Ticket(job, time.monotonic()) for job in jobs]
            self.waiting.extend(tickets)
        later(self._wake)
        return tickets

    def _wake(self) -> None:
        with self.wake:
            self.wake.notify()

    def errand(self, work: Callable[[], Any]) -> "Future[Any]":
        """Call `work` between two passes, where it has the model for itself."""
        future: Future[Any] = Future()
        with self.wake:
            self._check(1)
            self.errands.append((work, future))
            self.wake.notify()
        return future

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Free their places: at once in the queue, else after the pass that is under way."""
        with self.wake:
            for ticket in tickets:
                ticket.gone = True
            left = deque(ticket for ticket in self.waiting if not ticket.gone)
            self.metrics.abandoned += len(self.waiting) - len(left)
            self.waiting = left
            self.wake.notify()

    def stop(self, grace: float = 0.0) -> None:
        """Take nothing new; after `grace` seconds end what is left with what it has."""
        with self.wake:
            self.stopping, self.cut_at = True, time.monotonic() + grace
            self.wake.notify()

    def join(self, seconds: float | None = None) -> bool:
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def _check(self, count: int) -> None:
        if self.stopping:
            raise Stopping("the server is shutting down")
        ahead = len(self.waiting) + len(self.errands)
        if ahead + count > self.queue + self.places - len(self.active):
            self.metrics.refused += 1
            seconds = self.metrics.mean_seconds() * (ahead + 1) / self.places
            raise Busy(max(1, min(60, math.ceil(seconds))))

    # what follows runs in the engine's thread

    def _run(self) -> None:
        torch.set_num_threads(self.threads)  # OpenMP keeps it for each thread
        with torch.no_grad():
            while self._gather():
                self._errand()
                if self.active:
                    self._pass()
                if self.urgent or time.monotonic() >= self.last + PACE:
                    self._deliver()

    def _deliver(self) -> None:
        """Tell what there is to tell."""
        told, self.told, self.urgent, self.last = self.told, [], False, time.monotonic()
        if told:
            with suppress(RuntimeError):  # the server's loop has closed: nobody listens
                self.deliver(told)

    def _gather(self) -> bool:
        """Wait for work, clear and fill the places; False at the end."""
        with self.wake:
            while not (self.active or self.waiting or self.errands):
                if self.stopping:
                    return False
                self.wake.wait()
            self._clear(time.monotonic())
            while self.waiting and self.pool.free:
                ticket = self.waiting.popleft()
                ticket.place = self.pool.free.pop()
                self.active.append(ticket)
        return True

    def _clear(self, now: float) -> None:
        """End what has had its time, drop what nobody waits for."""
        cut = "shutdown" if now >= self.cut_at else None
        for ticket in [*self.active, *self.waiting]:
            reason = cut or ("time" if now >= ticket.job.deadline else None)
            if ticket.gone or reason:
                self._leave(ticket, None if ticket.gone else Ended("length", reason))
        self.waiting = deque(ticket for ticket in self.waiting if not ticket.gone)

    def _leave(self, ticket: Ticket, event: Ended | Failed | None) -> None:
        """Free its place and say so, unless nobody waits."""
        ticket.gone, ticket.track = True, None
        if ticket.place is not None:
            self.pool.free.append(ticket.place)
            ticket.place = None
            self.active.remove(ticket)
        if event is None:
            self.metrics.abandoned += 1
            return
        self.metrics.finished(time.monotonic() - ticket.came, failed=isinstance(event, Failed))
        self.told.append((ticket.job.listener, event))
        self.urgent = True

    def _errand(self) -> None:
        """One at a time, so that texts go on meanwhile."""
        with self.wake:
            if not self.errands:
                return
            work, future = self.errands.popleft()
        if not future.set_running_or_notify_cancel():
            return
        self._deliver()  # it may take long
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def _pass(self) -> None:
        """One pass of all places, and what it draws for each."""
        start = time.perf_counter()
        if any(ticket.track is None for ticket in self.active):
            self._deliver()  # a prompt may take long
        for ticket in list(self.active):
            self._begin(ticket)
        tickets = list(self.active)
        if not tickets:
            return
        tracks = [ticket.track for ticket in tickets if ticket.track]
        try:
            landed = step_together(self.model, self.pen, tracks)
        except Exception as error:  # whatever it is, the server goes on
            for ticket in tickets:
                self._leave(ticket, Failed(repr(error)))
            return
        for ticket, track, new in zip(tickets, tracks, landed, strict=True):
            if isinstance(new, Exception):
                self._leave(ticket, Failed(repr(new)))
            else:
                self._tell(ticket, track, new)
        self.metrics.passes += 1
        self.metrics.rows += len(tickets)
        self.metrics.busy_seconds += time.perf_counter() - start

    def _begin(self, ticket: Ticket) -> None:
        if ticket.track is not None or ticket.place is None:
            return
        job = ticket.job
        options = {"sampling": job.sampling, "eos": job.eos, "rivals": job.rivals}
        try:
            cache = self.pool.clear(ticket.place)
            ticket.track = Track(self.model, job.course, cache, generator=job.generator, **options)
        except Exception as error:  # one text's failure is not the others'
            self._leave(ticket, Failed(repr(error)))

    def _tell(self, ticket: Ticket, track: Track, landed: tuple[Landed, ...]) -> None:
        if track.step == 1:
            self.metrics.first_token(time.monotonic() - ticket.came)
            self.urgent = True
        self.metrics.tokens += len(landed)
        self.told.append((ticket.job.listener, Drawn(track.step - 1, landed, time.perf_counter())))
        if track.done:
            why: Literal["stop", "length"] = "stop" if track.ended else "length"
            self._leave(ticket, Ended(why))
