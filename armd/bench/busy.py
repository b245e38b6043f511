"""`armd bench busy`: how much speed is left beside another process that keeps a core busy?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..runtime.atomic_files import write_figures
from ..runtime.threads import own_core

LOOP = "while True: pass"
ENOUGH = 0.4


def bench_busy(
    *,
    busy: int = 1,
    seconds: float = 10.0,
    small: bool = True,
    threads: int | None = None,
    json: Path | None = None,
) -> dict[str, dict[str, float]]:
    """Time decoding (1 and 4 streams; a model of the demo's size and GPT-2 small's) and training,
    first alone, then beside processes that do nothing but compute, and print what is left.

    Args:
        busy: Other processes, each of which keeps one core busy.
        seconds: Seconds of each measurement.
        small: Also time the model of GPT-2 small's size.
        threads: CPU threads; by default as the commands choose them.
        json: Write the figures to this file.
    """
    from .timing import check_positive

    check_positive(busy=busy, seconds=seconds, threads=threads)
    jobs = dict(workloads(small=small, threads=threads))
    alone = {name: rate(work, seconds) for name, work in jobs.items()}
    with busy_processes(busy):
        beside = {name: rate(work, seconds) for name, work in jobs.items()}
    found = {
        name: {"alone": alone[name], "beside": beside[name], "left": beside[name] / alone[name]}
        for name in jobs
    }
    print(f"tokens/s, alone and beside {busy} busy processes, for {seconds:g} s each")
    print("| work | alone | beside | left |\n| --- | ---: | ---: | ---: |")
    for name, figures in found.items():
        mark = "" if figures["left"] >= ENOUGH else f" (below {ENOUGH})"
        print(
            f"| {name} | {figures['alone']:,.0f} | {figures['beside']:,.0f} "
            f"| {figures['left']:.2f}{mark} |"
        )
    if json is not None:
        write_figures(json, found)
    return found


def workloads(*, small: bool, threads: int | None) -> Iterator[tuple[str, Callable[[], int]]]:
    """Name and work: a call makes some tokens and says how many."""
    import torch

    from ..generation.api import generate
    from ..model.configuration_armd import ArmdConfig
    from ..model.modeling_armd import ArmdLM
    from ..native.packed import pack
    from ..runtime.threads import use_few_threads

    all_threads = torch.get_num_threads()
    sizes = {"demo": ArmdConfig.named("tiny", vocab_size=4096, max_length=128)}
    if small:
        sizes["small"] = ArmdConfig.named("small", max_length=128)

    def decode(model: ArmdLM, streams: int, length: int) -> Callable[[], int]:
        def work() -> int:
            torch.set_num_threads(all_threads)
            use_few_threads(model, threads)
            generate(model, length=length, streams=streams)
            return length

        return work

    for name, config in sizes.items():
        model = pack(ArmdLM(config).eval())
        for streams in (1, 4):
            yield (
                f"decode {name}, S={streams}",
                decode(model, streams, 128 if name == "demo" else 16),
            )
    trained = ArmdLM(sizes["demo"]).train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    tokens = torch.randint(4096, (8, 128))

    def train() -> int:
        torch.set_num_threads(threads or all_threads)
        trained(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return tokens.numel()

    yield "train demo", train


def rate(work: Callable[[], int], seconds: float) -> float:
    """Tokens/s over at least so many seconds, after one call that does not count."""
    with own_core():
        work()
        begin, tokens = time.perf_counter(), 0
        while time.perf_counter() < begin + seconds:
            tokens += work()
        return tokens / (time.perf_counter() - begin)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    made = [subprocess.Popen([sys.executable, "-S", "-c", LOOP]) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()
