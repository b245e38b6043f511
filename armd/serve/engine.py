"""The engine: one thread that decodes all requests together, one forward pass for all of them.

It has a number of slots, each with a KV cache of its own (continuous batching). Between two steps
finished and cancelled sequences leave their slots, and waiting ones take them: their prompts are
read in chunks, in the same passes as the decode steps of the others. A sequence has its own random
numbers, and rows of a pass do not influence each other: a request gets the text it would get alone.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Several
from concurrent.futures import Future
from ctypes import c_int
from typing import Any

import torch

from ..generation.decoder import Decoder
from ..model.modeling_armd import ArmdLM
from ..native.library import release_threads
from .cache_pool import CachePool, threads_for
from .events import Ended, Failed, StepEvent
from .metrics import Metrics
from .outbox import Deliver, Outbox, call
from .prefill import begin, keep_prompt, share_pass
from .requests import GenerationRequest, QueueFull, ScheduledRequest, ShuttingDown, next_of
from .score_batches import ScoreJob, ScoreQueue, TokenScores
from .shares import ClientShares, PrefillBudget, ScoreBudget
from .side_work import fail, settle


class Engine:
    """Decodes in a thread of its own, in which `deliver` takes the events (outbox.py)."""

    def __init__(
        self,
        model: ArmdLM,
        *,
        slots: int = 8,
        queue: int = 64,
        threads: int | None = None,
        deliver: Deliver = call,
    ) -> None:
        self.model, self.slots, self.queue = model.eval(), slots, queue
        self.pool = CachePool.of(model, slots + 1)  # the spare one
        self.decoder = Decoder(model)
        self.outbox = Outbox(deliver)
        self.metrics, self.prefill_budget = Metrics(), PrefillBudget()
        self.waiting: deque[ScheduledRequest] = deque()
        self.exclusive: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.scores, self.score_budget, self.clients = ScoreQueue(), ScoreBudget(), ClientShares()
        self.active: list[ScheduledRequest] = []
        self.wake, self.interrupt = threading.Condition(), c_int(0)
        self.stopping, self.cut_at, self.ended = False, math.inf, False
        self.threads = threads or threads_for(model)
        self.thread = threading.Thread(target=self._run, name="armd-engine", daemon=True)

    def start(self) -> "Engine":
        release_threads()  # the engine's own will be the only ones
        self.thread.start()
        return self

    def submit(
        self,
        requests: Several[GenerationRequest],
        *,
        client: object = None,
        later: Callable[[Callable[[], None]], object] = lambda wake: wake(),
    ) -> list[ScheduledRequest]:
        """All or none: raises QueueFull or ShuttingDown. `later` wakes an engine at rest."""
        with self.wake:
            self.check(len(requests))
            now, one = time.monotonic(), object()
            scheduled = [ScheduledRequest(request, now, one, client or one) for request in requests]
            self.waiting.extend(scheduled)
        later(self._wake)
        return scheduled

    def _wake(self) -> None:
        with self.wake:
            self._notify()

    def _notify(self) -> None:
        self.interrupt.value = 1  # the step under way is the last of its call
        self.wake.notify()

    def run_exclusive(self, work: Callable[[], Any]) -> "Future[Any]":
        """Call `work` between two passes, where it has the model for itself."""
        future: Future[Any] = Future()
        with self.wake:
            self.check(1)
            self.exclusive.append((work, future))
            self._notify()
        return future

    def score(self, job: ScoreJob, *, admitted: bool = False) -> "Future[TokenScores]":
        with self.wake:
            if not admitted or self.ended:  # else the request has its place in the queue
                self.check(1)
            self.scores.add(job)
            self._notify()
        return job.future

    def cancel(self, scheduled: Several[ScheduledRequest]) -> None:
        """Free their slots: at once in the queue, else after the pass that is under way."""
        with self.wake:
            for entry in scheduled:
                entry.cancelled = True
            left = deque(entry for entry in self.waiting if not entry.cancelled)
            self.metrics.abandoned += len(self.waiting) - len(left)
            self.waiting = left
            self._notify()

    def stop(self, grace: float = 0.0) -> None:
        """Take nothing new; after `grace` seconds end what is left with what it has."""
        with self.wake:
            self.stopping, self.cut_at = True, time.monotonic() + grace
            self._notify()

    def join(self, seconds: float | None = None) -> bool:
        self.thread.join(seconds)
        return not self.thread.is_alive()

    @property
    def failed(self) -> bool:
        """It ended without being told to."""
        return self.ended and not self.stopping

    def check(self, count: int) -> None:
        if self.stopping or self.ended:
            raise ShuttingDown(failed=self.failed)
        ahead = len(self.waiting) + len(self.exclusive) + self.scores.count()
        if ahead + count > self.queue + max(0, self.slots - len(self.active)):
            self.metrics.refused += 1
            raise QueueFull(self.metrics.seconds_until_free(ahead, self.slots))

    # what follows runs in the engine's thread

    @torch.no_grad()
    def _run(self) -> None:
        torch.set_num_threads(self.threads)  # OpenMP keeps it for each thread
        try:
            while self._admit():
                self._run_exclusive()
                if self.active:
                    self._step()
                self._score()
                self.outbox.flush_if_due()
        except Exception as error:
            self._break_off(error)

    def _break_off(self, error: Exception) -> None:
        """The engine itself has failed and cannot go on; nobody is left waiting."""
        with self.wake:
            self.ended, failed = True, Failed.of(error)
        fail([future for _, future in self.exclusive], ShuttingDown(failed=True))
        fail([job.future for job in self.scores.waiting], ShuttingDown(failed=True))
        for entry in [*self.active, *self.waiting]:
            self._finish(entry, failed)
        self.waiting.clear()
        self.outbox.flush()

    def _admit(self) -> bool:
        """Wait for work, and fill the slots; False at the end."""
        with self.wake:
            while not (self.active or self.waiting or self.exclusive or self.ended):
                pause = self.score_budget.pause() if self.scores.waiting else None
                if pause == 0:
                    break
                self.ended = self.stopping and pause is None
                if not self.ended:
                    self.wake.wait(pause)
            self._fill_slots()
        return not self.ended

    def _fill_slots(self) -> None:
        """Clear the slots and give them to waiting requests."""
        self.interrupt.value = 0
        self._expire(time.monotonic())
        while self.waiting and (entry := next_of(self.waiting, self.active, self.slots)):
            entry.cache = self.pool.free.pop()
            self.waiting.remove(entry)
            self.active.append(entry)

    def _expire(self, now: float) -> None:
        """End requests past their deadline, drop cancelled ones."""
        cut = "shutdown" if now >= self.cut_at else None
        for entry in [*self.active, *self.waiting]:
            reason = cut or ("time" if now >= entry.request.deadline else None)
            if entry.cancelled or reason:
                self._finish(entry, None if entry.cancelled else Ended("length", reason))
        self.waiting = deque(entry for entry in self.waiting if not entry.cancelled)

    def _finish(self, entry: ScheduledRequest, event: Ended | Failed | None) -> None:
        """Free its slot and send the event, unless the client has left."""
        entry.cancelled, entry.sequence = True, None
        if entry.cache is not None:
            self.pool.free.append(entry.cache)
            entry.cache = None
            self.active.remove(entry)
        if event is None and not entry.complete:
            self.metrics.abandoned += 1
            return
        self.metrics.finished(time.monotonic() - entry.arrived, failed=isinstance(event, Failed))
        if event is not None:
            self.outbox.put(entry.request.callback, event, at_once=True)

    def _run_exclusive(self) -> None:
        """One call at a time, so that decoding goes on meanwhile."""
        with self.wake:
            if not self.exclusive:
                return
            work, future = self.exclusive.popleft()
        self.outbox.flush()  # it may take long
        settle(work, future)

    def _score(self) -> None:
        """A batch of texts to be scored, if it is their turn."""
        passes_first = self.score_budget.debt > 0 and (self.active or self.score_budget.pause())
        if self.scores.waiting and not passes_first:
            self.outbox.flush()  # it may take long
            self._score_batch()

    def _score_batch(self) -> None:
        with self.wake:
            batch = self.scores.take()
        if batch:
            rest = self.scores.run(self.model, batch, self._make_way)
            self.score_budget.scored(rest, bool(self.active or self.waiting))

    def _make_way(self, seconds: float) -> None:
        """In the middle of a scoring pass, after so many seconds: the decode steps that it delayed,
        then shorter texts to be scored."""
        self.score_budget.scored(seconds, bool(self.active or self.waiting))
        while self.score_budget.debt > 0:
            with self.wake:
                self._fill_slots()
            if not self.active:
                break
            self._step()
            self.outbox.flush_if_due()
        self.outbox.flush()  # scoring goes on
        if time.monotonic() >= self.cut_at:
            raise ShuttingDown
        self._score_batch()

    def _step(self) -> None:
        """One pass of all slots, and what it draws for each."""
        start = time.perf_counter()
        if any(entry.sequence is None or not entry.sequence.step for entry in self.active):
            self.outbox.flush()  # a prompt may take long
            for entry in list(self.active):
                self._begin(entry)
            share_pass(self.active)
        # the others are paused, or wait for a sequence that reads the same prompt
        present = self.clients.present(self.active, time.monotonic())
        allowed = self.prefill_budget.allowed(present)
        ready = [(entry, entry.sequence) for entry in allowed if entry.sequence]
        if not ready:
            return
        sequences, firsts = [one for _, one in ready], [one.step for _, one in ready]
        try:
            rounds = self.decoder.steps(sequences, self.outbox.seconds_left(), self.interrupt)
        except Exception as error:  # whatever it is, the server goes on
            failed = Failed.of(error)
            for entry, _ in ready:
                self._finish(entry, failed)
            return
        each = (time.perf_counter() - start) / len(rounds)
        self.clients.took(present, len(rounds), each)
        for number, results in enumerate(rounds):
            for (entry, sequence), first, result in zip(ready, firsts, results, strict=True):
                if isinstance(result, Exception):
                    self._finish(entry, Failed.of(result))
                elif not sequence.step:
                    keep_prompt(self.pool, entry, sequence)
                elif not entry.cancelled:
                    event = StepEvent(first + number, result, start + (number + 1) * each)
                    self._emit(entry, event)
        for entry, sequence in ready:
            if sequence.done and not entry.cancelled:
                self._finish(entry, Ended("stop" if sequence.stopped else "length"))
        self.score_budget.decoded(seconds := time.perf_counter() - start)
        self.prefill_budget.took(firsts, len(rounds), seconds)
        self.metrics.passed(len(rounds), len(ready) * len(rounds), seconds)

    def _begin(self, entry: ScheduledRequest) -> None:
        try:
            begin(self.model, self.pool, entry)
        except Exception as error:  # one request's failure is not the others'
            self._finish(entry, Failed.of(error))

    def _emit(self, entry: ScheduledRequest, event: StepEvent) -> None:
        if event.step == 0:
            self.metrics.first_token(time.monotonic() - entry.arrived)
        self.metrics.tokens += len(event.tokens)
        self.outbox.put(entry.request.callback, event, at_once=event.step == 0)
