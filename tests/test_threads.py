"""A busy machine: the number of threads follows the time that passes take."""

import os
import subprocess
import sys

import pytest
import torch

from armd.runtime import threads
from armd.runtime.threads import (
    LONGEST,
    PAUSE,
    TRIAL,
    ThreadTuner,
    fits_a_core,
    pin_threads,
    use_few_threads,
)


class Machine:
    """Passes take the seconds of the threads they are made with."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.now = seconds, 0.0
        self.tuner = ThreadTuner(2, clock=lambda: self.now)

    def passes(self, count: int) -> int:
        for _ in range(count):
            took = self.seconds[self.tuner.threads]
            self.now += took
            self.tuner.record(took)
        return self.tuner.threads


def test_the_faster_number_of_threads_is_taken_and_taken_again_when_the_machine_changes() -> None:
    machine = Machine({1: 0.02, 2: 0.012})
    assert machine.passes(20) == 2
    machine.seconds = {1: 0.025, 2: 3.0}  # another process took a core
    machine.now += PAUSE
    assert machine.passes(40) == 1
    machine.seconds = {1: 0.2, 2: 0.05}
    machine.now += PAUSE
    assert machine.passes(80) == 2


def test_one_lucky_pass_beside_another_process_does_not_decide() -> None:
    machine = Machine({1: 0.02, 2: 0.012})
    tuner, took = machine.tuner, iter([0.05, 0.05, 0.012, 0.05, 0.05, 0.05])
    while tuner.trial:
        tuner.record(next(took) if tuner.threads == 2 else 0.02)
    assert tuner.threads == 1


def test_cores_that_are_free_again_are_found_without_many_trials() -> None:
    machine = Machine({1: 0.02, 2: 0.05})
    assert machine.passes(20) == 1
    passes = {1: 0, 2: 0}
    for _ in range(10_000):  # 200 s
        passes[machine.tuner.threads] += 1
        machine.passes(1)
    assert 1 < passes[2] / (TRIAL + 1) < 8
    machine.seconds = {1: 0.02, 2: 0.012}
    machine.passes(int(LONGEST / 0.02) + 20)
    assert machine.tuner.threads == 2


def test_equal_times_take_one_thread_and_one_core_needs_no_trial() -> None:
    assert Machine({1: 0.02, 2: 0.02}).passes(20) == 1
    tuner = ThreadTuner(1)
    assert [tuner.record(1.0) for _ in range(5)] == [1] * 5


def test_a_model_that_fits_a_core_gets_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_pinned", False)
    before = torch.get_num_threads()
    small, large = torch.nn.Linear(8, 8), torch.nn.Linear(4096, 2048)
    for model in (small, large):
        model.device = torch.device("cpu")  # type: ignore[assignment]
    try:
        torch.set_num_threads(2)
        assert fits_a_core(small) and not fits_a_core(large)
        use_few_threads(large)
        assert torch.get_num_threads() == 2
        use_few_threads(small)
        assert torch.get_num_threads() == 1
        use_few_threads(small, 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_decode_steps_take_the_faster_number_and_leave_the_users_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, model, now = torch.get_num_threads(), torch.nn.Linear(2, 2), [0.0]
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(threads, "_pinned", False)

    def passes(count: int) -> int:
        for _ in range(count):
            with threads.tuned_threads(model) as rows:
                used = torch.get_num_threads()
                rows.append(1)
                now[0] += {1: 0.02, 2: 3.0}[used]  # another process has the second core
            assert torch.get_num_threads() == 2
        return used

    try:
        torch.set_num_threads(2)
        assert passes(2) == 2 and passes(18) == 1
        pin_threads(2)
        assert passes(3) == 2
    finally:
        torch.set_num_threads(before)


def test_spinning_is_bounded_before_torch_is_loaded_unless_the_user_chose() -> None:
    code = (
        "import os, sys; from armd.runtime.threads import limit_spinning; limit_spinning();"
        "assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    for given, expected in (({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_WAIT"))}
        done = subprocess.run(
            [sys.executable, "-c", code], env=clean | given, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected, done.stderr


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@pytest.mark.skipif(CORES < 2, reason="this process has one core, or cannot choose")
def test_threads_have_cores_of_their_own_and_what_they_start_has_all() -> None:
    """Only inside `own_core` is the main thread bound, and never what it starts or leaves."""
    code = """
import os, subprocess, sys, threading
from armd.runtime.threads import bind_threads, leave_core, own_core
every = os.sched_getaffinity(0)
bind_threads()
import torch
assert os.sched_getaffinity(0) == every
assert not [n for n in os.environ if n.startswith(("OMP_", "GOMP_"))]
torch.randn(10**6).exp()
threads = {int(t): os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")}
workers = [cores for t, cores in threads.items() if cores != every]
assert len(workers) == torch.get_num_threads() - 1, threads
with own_core():
    mine, found = os.sched_getaffinity(0), []
    def work():
        leave_core()
        found.append(os.sched_getaffinity(0))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert found == [every] and os.sched_getaffinity(0) == every
assert all(not mine & cores for cores in workers) and mine < every
print("bound")
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert done.stdout.strip() == "bound", done.stderr
