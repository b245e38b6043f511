"""How to time fairly: all sides interleaved in one process, minimum and median."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ArmdError
from ..runtime.memory import give_back_memory
from ..runtime.numbers import whole_number


def check_positive(**given: float | Sequence[float] | None) -> None:
    """Raise for options of which 0 or less would leave nothing to time."""
    for name, found in given.items():
        for value in found if isinstance(found, Sequence) else (found,):
            if value is not None and not 0 < value <= 10**6:
                raise ArmdError(f"--{name} {value} must be above 0 and at most 1000000")


def numbers(text: str, name: str) -> list[int]:
    """Of an option such as 1,16."""
    found = [whole_number(word, 1, 10**6) for word in text.split(",")]
    if None in found:
        raise ArmdError(f"--{name} '{text[:40]}' must be numbers from 1 on, such as 1,16")
    return list(filter(None, found))


@dataclass(frozen=True)
class Times:
    """Seconds of each repetition."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


PAUSE = 0.03
"""Seconds before each turn: threads of the side before, which spin a while for more work, sleep."""


def interleave(
    sides: dict[str, Callable[[], object]],
    *,
    repeats: int,
    device: torch.device,
    warm: bool = False,
) -> dict[str, Times]:
    """Run every side once to warm up, if they are not `warm`, then all in turn, `repeats` times."""
    check_positive(repeats=repeats)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm, repeats + 1):
        for name, run in sides.items():
            time.sleep(PAUSE)
            taken = timed(run, device)
            if turn:
                seconds[name].append(taken)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that `work` takes."""
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    """Wait until the device has done its work; a CPU has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def peak_memory(run: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that a run needs on top of what is held before it; None where the system can't tell."""
    gc.collect()
    give_back_memory()
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
        before = torch.accelerator.memory_allocated(device)
        run()
        return torch.accelerator.max_memory_allocated(device) - before
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return None
    try:
        reset.write_text("5")
    except OSError:
        return None
    before = _resident(status, "VmRSS")
    run()
    return _resident(status, "VmHWM") - before


def _resident(status: Path, field: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def gemm_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s that this machine's matrix product reaches: the best of several square sizes."""
    best = 0.0
    for size in (1024, 2048, 3072):
        a, b, out = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
        times = interleave({"mm": lambda: torch.mm(a, b, out=out)}, repeats=4, device=device)  # noqa: B023
        best = max(best, 2 * size**3 / times["mm"].best)
    return best


def memory_reader(data: torch.Tensor) -> Callable[[], object]:
    """Reads all of `data` once, as fast as this machine can: on a CPU by a loop in C, which a sum
    of torch's does not reach, with as many threads as torch has."""
    from ..native.library import library

    made = library() if data.device.type == "cpu" else None
    if made is None:
        return data.sum
    return lambda: made.read_memory(data.data_ptr(), data.numel())


def read_bandwidth(device: torch.device) -> float:
    """Bytes/s at which this machine reads memory it has written: the best of several."""
    data = torch.ones(96 * 2**20, device=device)
    times = interleave({"read": memory_reader(data)}, repeats=6, device=device)
    return data.numel() * data.element_size() / times["read"].best
