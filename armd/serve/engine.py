"""The engine: one thread that writes all texts that were asked for, one pass for all of them.

It has a number of slots, each with a cache of its own. Between two passes finished and abandoned
texts leave their slots, and waiting ones take them: their prompts enter with the next pass, beside
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
from .cache_pool import CachePool, threads_for
from .events import Ended, Event, Failed, StepEvent, TokenOutput
from .metrics import Metrics
from .tracks import Track, step_together

Callback = Callable[[Event], None]

FLUSH_INTERVAL = 0.002
"""Seconds that what was drawn may wait for the next pass, so that a fast model's tokens travel
together. The first of a text, and its end, go at once; nothing waits for an exclusive call or a
prompt."""


class QueueFull(Exception):
    """The queue is full; worth another try after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


class ShuttingDown(Exception):
    """The server takes nothing new."""


@dataclass(frozen=True)
class GenerationRequest:
    """One text to be written, and who is told."""

    course: Course
    sampling: Sampling
    generator: torch.Generator
    callback: Callback
    eos: int | None = None
    rivals: int = 0
    """How many of the most probable tokens to report with each token drawn."""
    deadline: float = math.inf
    """time.monotonic() after which it ends with what it has."""


@dataclass(eq=False)
class ScheduledRequest:
    """A job on its way."""

    job: GenerationRequest
    arrived: float
    track: Track | None = None
    slot: Cache | None = None
    cancelled: bool = False
    """Nobody waits for it any more."""


def _now(work: Callable[[], None]) -> None:
    work()


class Engine:
    """Write texts in a thread of its own. `deliver` takes what is to be told, pass after pass or of
    some passes together, as (callback, event) pairs, in that thread; left out, the listeners are
    called there."""

    def __init__(
        self,
        model: ArmdLM,
        *,
        slots: int = 8,
        queue: int = 64,
        threads: int | None = None,
        deliver: Callable[[list[tuple[Callback, Event]]], None] | None = None,
    ) -> None:
        self.model, self.slots, self.queue = model.eval(), slots, queue
        self.pool = CachePool.of(model, slots)
        self.pen = None
        if isinstance(model, FastLM) and model.whole:
            self.pen = Pen(model, self.pool.free[0])
        self.deliver = deliver or (lambda told: [listen(event) for listen, event in told])
        self.metrics = Metrics()
        self.waiting: deque[ScheduledRequest] = deque()
        self.exclusive: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.active: list[ScheduledRequest] = []
        self.told: list[tuple[Callback, Event]] = []
        self.flush_now, self.last = False, 0.0
        self.wake = threading.Condition()
        self.stopping, self.cut_at = False, math.inf
        self.threads = threads or threads_for(model)
        self.thread = threading.Thread(target=self._run, name="armd-engine", daemon=True)

    def start(self) -> "Engine":
        release_threads()  # the engine's own will be the only ones
        self.thread.start()
        return self

    def submit(
        self,
        jobs: Sequence[GenerationRequest],
        *,
        later: Callable[[Callable[[], None]], object] = _now,
    ) -> list[ScheduledRequest]:
        """All of them, or none: raises QueueFull where the queue has no room, ShuttingDown at the
        end. With `later`, an engine at rest is woken by what is handed to it."""
        with self.wake:
            self._check(len(jobs))
            scheduled = [ScheduledRequest(job, time.monotonic()) for job in jobs]
            self.waiting.extend(scheduled)
        later(self._wake)
        return scheduled

    def _wake(self) -> None:
        with self.wake:
            self.wake.notify()

    def run_exclusive(self, work: Callable[[], Any]) -> "Future[Any]":
        """Call `work` between two passes, where it has the model for itself."""
        future: Future[Any] = Future()
        with self.wake:
            self._check(1)
            self.exclusive.append((work, future))
            self.wake.notify()
        return future

    def cancel(self, scheduled: Sequence[ScheduledRequest]) -> None:
        """Free their slots: at once in the queue, else after the pass that is under way."""
        with self.wake:
            for ticket in scheduled:
                ticket.cancelled = True
            left = deque(ticket for ticket in self.waiting if not ticket.cancelled)
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
            raise ShuttingDown("the server is shutting down")
        ahead = len(self.waiting) + len(self.exclusive)
        if ahead + count > self.queue + self.slots - len(self.active):
            self.metrics.refused += 1
            seconds = self.metrics.mean_seconds() * (ahead + 1) / self.slots
            raise QueueFull(max(1, min(60, math.ceil(seconds))))

    # what follows runs in the engine's thread

    def _run(self) -> None:
        torch.set_num_threads(self.threads)  # OpenMP keeps it for each thread
        with torch.no_grad():
            while self._admit():
                self._run_exclusive()
                if self.active:
                    self._pass()
                if self.flush_now or time.monotonic() >= self.last + FLUSH_INTERVAL:
                    self._deliver()

    def _deliver(self) -> None:
        """Tell what there is to tell."""
        told, self.told, self.flush_now, self.last = self.told, [], False, time.monotonic()
        if told:
            with suppress(RuntimeError):  # the server's loop has closed: nobody listens
                self.deliver(told)

    def _admit(self) -> bool:
        """Wait for work, clear and fill the slots; False at the end."""
        with self.wake:
            while not (self.active or self.waiting or self.exclusive):
                if self.stopping:
                    return False
                self.wake.wait()
            self._expire(time.monotonic())
            while self.waiting and self.pool.free:
                ticket = self.waiting.popleft()
                ticket.slot = self.pool.free.pop()
                self.active.append(ticket)
        return True

    def _expire(self, now: float) -> None:
        """End what has had its time, drop what nobody waits for."""
        cut = "shutdown" if now >= self.cut_at else None
        for ticket in [*self.active, *self.waiting]:
            reason = cut or ("time" if now >= ticket.job.deadline else None)
            if ticket.cancelled or reason:
                self._finish(ticket, None if ticket.cancelled else Ended("length", reason))
        self.waiting = deque(ticket for ticket in self.waiting if not ticket.cancelled)

    def _finish(self, ticket: ScheduledRequest, event: Ended | Failed | None) -> None:
        """Free its slot and say so, unless nobody waits."""
        ticket.cancelled, ticket.track = True, None
        if ticket.slot is not None:
            self.pool.free.append(ticket.slot)
            ticket.slot = None
            self.active.remove(ticket)
        if event is None:
            self.metrics.abandoned += 1
            return
        self.metrics.finished(time.monotonic() - ticket.arrived, failed=isinstance(event, Failed))
        self.told.append((ticket.job.callback, event))
        self.flush_now = True

    def _run_exclusive(self) -> None:
        """One at a time, so that texts go on meanwhile."""
        with self.wake:
            if not self.exclusive:
                return
            work, future = self.exclusive.popleft()
        if not future.set_running_or_notify_cancel():
            return
        self._deliver()  # it may take long
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def _pass(self) -> None:
        """One pass of all slots, and what it draws for each."""
        start = time.perf_counter()
        if any(ticket.track is None for ticket in self.active):
            self._deliver()  # a prompt may take long
        for ticket in list(self.active):
            self._begin(ticket)
        scheduled = list(self.active)
        if not scheduled:
            return
        tracks = [ticket.track for ticket in scheduled if ticket.track]
        try:
            landed = step_together(self.model, self.pen, tracks)
        except Exception as error:  # whatever it is, the server goes on
            for ticket in scheduled:
                self._finish(ticket, Failed(repr(error)))
            return
        for ticket, track, new in zip(scheduled, tracks, landed, strict=True):
            if isinstance(new, Exception):
                self._finish(ticket, Failed(repr(new)))
            else:
                self._tell(ticket, track, new)
        self.metrics.passes += 1
        self.metrics.rows += len(scheduled)
        self.metrics.busy_seconds += time.perf_counter() - start

    def _begin(self, ticket: ScheduledRequest) -> None:
        if ticket.track is not None or ticket.slot is None:
            return
        job = ticket.job
        options = {"sampling": job.sampling, "eos": job.eos, "rivals": job.rivals}
        try:
            cache = self.pool.clear(ticket.slot)
            ticket.track = Track(self.model, job.course, cache, generator=job.generator, **options)
        except Exception as error:  # one text's failure is not the others'
            self._finish(ticket, Failed(repr(error)))

    def _tell(
        self, ticket: ScheduledRequest, track: Track, landed: tuple[TokenOutput, ...]
    ) -> None:
        if track.step == 1:
            self.metrics.first_token(time.monotonic() - ticket.arrived)
            self.flush_now = True
        self.metrics.tokens += len(landed)
        self.told.append(
            (ticket.job.callback, StepEvent(track.step - 1, landed, time.perf_counter()))
        )
        if track.done:
            why: Literal["stop", "length"] = "stop" if track.ended else "length"
            self._finish(ticket, Ended(why))
