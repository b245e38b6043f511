"""`armd bench serve`: what do many clients get against one; what does the server itself cost?"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..errors import ArmdError
from ..eval.results import table
from ..runtime.atomic_files import write_figures

if TYPE_CHECKING:
    from ..serve.service import Service

SIZES = {"demo": ("tiny", 4096, 128), "small": ("small", 50257, 1024)}


@dataclass(frozen=True)
class Figures:
    """One model, random weights."""

    size: str
    tokens: int
    """New tokens of a text."""
    texts: int
    """Of each client, one after the other."""
    clients: int
    alone: float
    """Tokens/s of one client."""
    together: float
    """Tokens/s of all clients."""
    ratio: float
    library: float
    """Tokens/s of armd.generate, called in a loop without any server."""
    own_cost: float
    """Share of one client's time that is not the library's."""
    first_token_calls: float
    """Time to the first token at low load, in model calls."""
    first_token: float
    """The same in seconds."""


def bench_serve(
    sizes: Annotated[str, tyro.conf.arg(help="demo, small or both, as demo,small")] = "demo,small",
    clients: int = 8,
    tokens: int = 64,
    texts: Annotated[int, tyro.conf.arg(help="of a client, one after the other")] = 4,
    repeats: int = 3,
    threads: int | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time one client, many together, and the bare library, interleaved. The clients are another
    process; weights are random."""
    import torch

    from ..runtime.memory import keep_freed_memory
    from .timing import check_positive

    check_positive(clients=clients, tokens=tokens, texts=texts, repeats=repeats, threads=threads)
    keep_freed_memory()
    if wrong := [size for size in sizes.split(",") if size not in SIZES]:
        raise ArmdError(f"no size '{wrong[0][:40]}'; use demo, small or demo,small")
    found = [measure(size, clients, tokens, texts, repeats, threads) for size in sizes.split(",")]
    show(found)
    if json_file:
        content = {"cores": torch.get_num_threads(), "rows": [asdict(row) for row in found]}
        write_figures(json_file, content)


def measure(
    size: str, clients: int, tokens: int, texts: int, repeats: int, threads: int | None
) -> Figures:
    with serving(size, clients, threads) as (service, port):
        ways = {
            "library": lambda: library(service, tokens, texts),
            "alone": lambda: asked(port, 1, tokens, texts),
            "together": lambda: asked(port, clients, tokens, texts),
        }
        runs: dict[str, list[Any]] = {name: [] for name in ways}
        for turn in range(repeats + 1):
            for name, run in ways.items():
                seconds = run()
                if turn:
                    runs[name].append(seconds)
    library_rate = texts * tokens / min(runs["library"])
    alone = texts * tokens / min(run["seconds"] for run in runs["alone"])
    together = clients * texts * tokens / min(run["seconds"] for run in runs["together"])
    first = statistics.median(run["first"] for run in runs["alone"])
    call = statistics.median(run["call"] for run in runs["alone"])
    return Figures(
        size=size,
        tokens=tokens,
        texts=texts,
        clients=clients,
        alone=alone,
        together=together,
        ratio=together / alone,
        library=library_rate,
        own_cost=1 - alone / library_rate,
        first_token_calls=first / call,
        first_token=first,
    )


@contextmanager
def serving(size: str, slots: int, threads: int | None = None) -> Iterator[tuple[Service, int]]:
    """A server of random weights in a thread of this process."""
    from ..data.tokenizer import byte_tokenizer, with_ends
    from ..model.configuration_armd import ArmdConfig
    from ..model.modeling_armd import ArmdLM
    from ..native.packed import pack
    from ..serve.command import warm_up
    from ..serve.server import in_thread
    from ..serve.service import Limits, Service

    name, vocabulary, length = SIZES[size]
    model = ArmdLM(ArmdConfig.named(name, vocab_size=vocabulary, max_length=length)).eval()
    tokenizer = with_ends(byte_tokenizer(), rows=False)
    limits = Limits(slots=slots, timeout=600.0, threads=threads)
    service = Service(pack(model), tokenizer, name=size, limits=limits)
    warm_up(service)
    with in_thread(service) as port:
        yield service, port


def library(service: Service, tokens: int, texts: int) -> float:
    """Seconds of armd.generate for texts, in the thread that has OpenMP's threads."""
    import torch

    from ..generation.api import generate

    def run() -> float:
        start = time.perf_counter()
        for seed in range(texts):
            generator = torch.Generator().manual_seed(seed)
            generate(service.model, length=tokens + 1, prompt=[[1]], generator=generator)
        return time.perf_counter() - start

    return service.engine.run_exclusive(run).result()


def asked(port: int, clients: int, tokens: int, texts: int) -> dict[str, float]:
    """What a process of clients measured: all seconds, the first token's, and those of a call."""
    numbers = map(str, (port, clients, tokens, texts))
    words = [sys.executable, "-m", "armd.bench.serve", *numbers]
    answer = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout)


async def together(port: int, clients: int, tokens: int, texts: int) -> dict[str, float]:
    """Clients with open connections, each of which asks for texts one after the other."""
    from .http_client import Recorder

    async def one(line: Recorder, number: int, count: int) -> list[list[float]]:
        # tokens and known have no EOS to stop at, so that every text has all its tokens
        body = {"tokens": [1] + [0] * tokens, "known": [True] + [False] * tokens}
        events = [
            await line.listen("/v1/infill", body | {"seed": number + clients * text})
            for text in range(count)
        ]
        return [[at for at, event in text if event["type"] == "step"] for text in events]

    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Recorder, "127.0.0.1", port) for _ in range(clients)]
    lines = [line for _, line in made]
    await asyncio.gather(*(one(line, i, 1) for i, line in enumerate(lines)))
    start = time.perf_counter()
    each = await asyncio.gather(*(one(line, i, texts) for i, line in enumerate(lines)))
    seconds, times = time.perf_counter() - start, [text for client in each for text in client]
    first = statistics.median(line[0] for line in times)
    call = statistics.median((line[-1] - line[0]) / max(1, len(line) - 1) for line in times)
    return {"seconds": seconds, "first": first, "call": call}


def show(found: list[Figures]) -> None:
    print("one client against many, streamed")
    header = ["model", "tokens/s alone", "library", "own cost", "clients", "tokens/s", "ratio"]
    lines = []
    for row in found:
        cells = (f"{row.alone:.1f}", f"{row.library:.1f}", f"{row.own_cost:.1%}", f"{row.clients}")
        cells += (f"{row.together:.1f}", f"{row.ratio:.2f}", f"{row.first_token_calls:.2f}")
        lines.append([row.size, *cells, f"{row.first_token * 1e3:.0f}"])
    print(table([*header, "first token, calls", "ms"], lines))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(together(*map(int, sys.argv[1:5])))))
