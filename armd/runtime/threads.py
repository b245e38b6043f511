"""How many CPU threads does a pass take? One for a model that fits the caches of a core; for decode
steps in C of others the number that is fastest now, found by timing passes, and found again when
they become slow: there it changes no bit. In torch it does, so training keeps one number.

At the end of each part of a pass the threads wait for each other. libgomp lets a waiting thread
spin 300,000 times before it sleeps, and beside another busy process the system may put both
threads on one core: one spins, and takes the time of the very thread that would end its wait. So
verbs that compute give each thread a core of its own. Where that cannot be, spinning is bounded,
which costs a quiet machine speed: a sleeping thread must be woken."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

from .post_import import after_import

SPINS = "2000"
"""Some hundredths of a millisecond; then the waiting thread sleeps and its core is free."""
IN_A_CORE = 16 * 2**20
"""Bytes of weights that a core reads about as fast from its caches as two do."""
TRIAL, SLOWER, PAUSE, LONGEST = 5, 1.8, 5.0, 80.0
"""Passes to time each number of threads with; how many times slower than before starts that again;
seconds that must lie between two such trials. With one thread nobody sees that the other cores are
free again: there is another trial after PAUSE, and after twice as long each time, up to LONGEST."""


BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "GOMP_SPINCOUNT": "50000"}
"""With cores of their own threads may spin for some milliseconds: longer than torch takes from one
operation to the next, shorter than another process has a core."""
CHOSEN = ("OMP_", "GOMP_", "LOCAL_RANK")
"""Variables by which a user, or torchrun, has said how threads and cores are shared."""


@dataclass
class _Cores:
    """Those that this process may use, and the main thread's own, once OpenMP has chosen it."""

    all: Set[int] = frozenset()
    main: Set[int] = frozenset()


_cores = _Cores()


def bind_threads() -> None:
    """Have OpenMP give each of its threads a core. To be called before torch is imported; what the
    user has set stays. The main thread is bound only inside `own_core`, because all threads and
    processes that it starts would be bound with it."""
    said = any(name.startswith(CHOSEN) for name in os.environ)
    if said or "torch" in sys.modules or not hasattr(os, "sched_setaffinity"):
        return limit_spinning()
    _cores.all = os.sched_getaffinity(0)
    os.environ.update(BOUND)
    after_import("torch", _threads_are_bound)


def _threads_are_bound() -> None:
    """OpenMP has read the variables and bound this thread."""
    for name in BOUND:
        os.environ.pop(name, None)
    _cores.main = os.sched_getaffinity(0)
    leave_core()


def leave_core() -> None:
    """Let the calling thread run on all cores: one that was started inside `own_core`."""
    if _cores.main:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, _cores.all)


@contextmanager
def own_core() -> Iterator[None]:
    """Inside, the main thread stays on its core, as OpenMP's other threads do on theirs."""
    if _cores.main:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, _cores.main)
    try:
        yield
    finally:
        leave_core()


def limit_spinning() -> None:
    """Bound how long OpenMP's threads spin. To be called before torch is imported, because libgomp
    reads this when it is loaded; what the user has set stays."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def fits_a_core(model: Any) -> bool:
    parts = [*model.buffers(), *model.parameters()]
    return sum(part.numel() * part.element_size() for part in parts) < IN_A_CORE


def use_few_threads(model: Any, threads: int | None = None) -> None:
    """Set the number of threads of this thread's passes: as asked, else one for a model that fits
    a core's caches."""
    import torch

    if threads is not None:
        pin_threads(threads)
    elif model.device.type == "cpu" and fits_a_core(model):
        torch.set_num_threads(1)


def pin_threads(threads: int) -> None:
    """So many threads, as the user says: nothing is timed to find a better number."""
    global _pinned
    import torch

    torch.set_num_threads(threads)
    _pinned = True


_pinned = False
_tuners: WeakKeyDictionary[Any, ThreadTuner] = WeakKeyDictionary()


@contextmanager
def tuned_threads(model: Any) -> Iterator[list[int]]:
    """Inside, passes of the model, in the number of threads that is best for it; afterwards the
    calling thread has the number it had. The list takes the numbers of their rows."""
    import torch

    most, rows = torch.get_num_threads(), list[int]()
    if most == 1 or _pinned:
        yield rows
        return
    tuner = _tuners.get(model)
    if tuner is None or tuner.most != most:
        tuner = _tuners[model] = ThreadTuner(most)
    torch.set_num_threads(tuner.threads)
    begin = time.perf_counter()
    try:
        yield rows
        tuner.record(time.perf_counter() - begin, sum(rows))
    finally:
        torch.set_num_threads(most)


class ThreadTuner:
    """Chooses between one thread and all, from the seconds that passes take. `record` is called
    after each pass, in the thread that makes them."""

    def __init__(self, most: int, *, clock: Any = time.monotonic) -> None:
        self.most = most
        self.choices, self.clock = sorted({1, max(1, most)}, reverse=True), clock
        self.threads = self.choices[0]
        self.trial: dict[int, list[float]] = {choice: [] for choice in self.choices}
        self.usual, self.recent, self.tried, self.patience = 0.0, 0.0, clock(), PAUSE
        if len(self.choices) == 1:
            self.trial = {}

    def record(self, seconds: float, rows: int = 1) -> int:
        """Take note of a pass over `rows` rows; the number of threads for the next one."""
        if len(self.choices) == 1:
            return self.threads
        each = seconds / max(1, rows)
        if self.trial:
            self._try(each)
        else:
            self.recent += (each - self.recent) / 8
            slow, since = self.recent > SLOWER * self.usual, self.clock() - self.tried
            few = self.threads < self.most and since >= self.patience
            if few or (slow and since >= PAUSE):
                self.trial = {choice: [] for choice in self.choices}
        return self.threads

    def _try(self, each: float) -> None:
        """Time the choices in turn; the first pass of each is not counted, it wakes threads."""
        self.trial[self.threads].append(each)
        left = [choice for choice in self.choices if len(self.trial[choice]) <= TRIAL]
        if left:
            self.threads = left[0]
            return
        # not the fastest: that one had the core which another process has in all the others
        took = {choice: median(times[1:]) for choice, times in self.trial.items()}
        self.threads = min(self.choices, key=lambda choice: took[choice] * (1 + 0.1 * (choice > 1)))
        self.usual = self.recent = took[self.threads]
        self.trial, self.tried = {}, self.clock()
        again = self.threads < self.most
        self.patience = min(2 * self.patience, LONGEST) if again else PAUSE
