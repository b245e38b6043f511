"""`armd bench fair`: what do four clients keep of their tokens/s beside clients of other kinds?"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import tyro

from ..eval.results import table
from ..runtime.atomic_files import write_figures

CLIENTS, TOKENS = 4, 64
# what the others ask for: path, body, how many of them
OTHERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "nobody": ("", {}, 0),
    "1 plain": ("/v1/completions", {}, 1),
    "1 with a repetition penalty": ("/v1/completions", {"repetition_penalty": 1.3}, 1),
    "1 with 5 log-probabilities": ("/v1/completions", {"logprobs": 5}, 1),
    "16 of /v1/score": ("/v1/score", {}, 16),
}


@dataclass(frozen=True)
class Share:
    """What the four clients get beside others."""

    size: str
    others: str
    tokens_per_second: float
    """The median of the rounds."""
    share: float
    """Of what they get with nobody beside them in the same round: the median of the rounds."""
    best: float
    """The best round's tokens/s, of the best with nobody beside them."""
    others_per_second: float
    """Answers a second that the others get: the median."""


def bench_fair(
    size: Literal["demo", "small"] = "demo",
    seconds: Annotated[float, tyro.conf.arg(help="of each measurement")] = 3.0,
    repeats: int = 7,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time four clients that write texts without a pause, beside others of each kind, in rounds of
    all kinds. Weights are random; each group of clients is a process of its own."""
    from .serve import serving
    from .timing import check_positive

    check_positive(seconds=seconds, repeats=repeats)
    rounds: list[dict[str, tuple[float, float]]] = []
    with serving(size, 8) as (_, port):
        for _ in range(repeats):
            rounds.append({name: measure(port, name, seconds) for name in OTHERS})
    found = [share_of(size, name, rounds) for name in OTHERS]
    show(found)
    if json_file:
        write_figures(json_file, [asdict(row) for row in found])


def share_of(size: str, name: str, rounds: list[dict[str, tuple[float, float]]]) -> Share:
    rates = [(one[name][0], one["nobody"][0] or 1.0) for one in rounds]
    best, alone = (max(column) for column in zip(*rates, strict=True))
    return Share(
        size,
        name,
        tokens_per_second=median(rate for rate, _ in rates),
        share=median(rate / alone for rate, alone in rates),
        best=best / alone,
        others_per_second=median(one[name][1] for one in rounds),
    )


def measure(port: int, others: str, seconds: float) -> tuple[float, float]:
    """Tokens/s of the four, and answers/s of the others."""
    words = [sys.executable, "-m", "armd.bench.fairness", str(port)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    both = [[*words, name, str(seconds)] for name in ("four", others)]
    with subprocess.Popen(both[1], **pipes) as beside, subprocess.Popen(both[0], **pipes) as four:
        rates = [json.loads(process.communicate()[0]) for process in (four, beside)]
    return rates[0], rates[1]


async def clients(port: int, kind: str, seconds: float) -> float:
    """Answers a second of all clients of a kind; for "four", tokens a second. Those of a kind begin
    before the four do and end after them."""
    from .http_client import Recorder

    body: dict[str, Any] = {"prompt": [1], "max_tokens": TOKENS, "stream": True}
    path, more, count = OTHERS.get(kind, ("/v1/infill", {}, CLIENTS))
    if kind == "four":  # tokens and known have no EOS to stop at
        body = {"tokens": [1] + [0] * TOKENS, "known": [True] + [False] * TOKENS}
    if path == "/v1/score":
        body = {"tokens": [i % 250 for i in range(2 * TOKENS - 1)]}
    if not count:
        return 0.0
    if kind == "four":
        await asyncio.sleep(0.5)
    loop = asyncio.get_running_loop()
    lines = [(await loop.create_connection(Recorder, "127.0.0.1", port))[1] for _ in range(count)]
    begin = time.perf_counter()
    until = begin + seconds + (0 if kind == "four" else 1)

    async def one(number: int, line: Recorder) -> int:
        answers = 0
        while time.perf_counter() < until:
            await line.fetch(path, body | more | ({} if path == "/v1/score" else {"seed": number}))
            answers += 1
        return answers

    answers = sum(await asyncio.gather(*(one(i, line) for i, line in enumerate(lines))))
    rate = answers / (time.perf_counter() - begin)
    return rate * TOKENS if kind == "four" else rate


def show(found: list[Share]) -> None:
    print(f"{found[0].size}: four clients beside others")
    header = ["beside", "tokens/s of the four", "share", "best", "answers/s of the others"]
    lines = []
    for row in found:
        shares = (f"{row.share:.0%}", f"{row.best:.0%}")
        rate, others = f"{row.tokens_per_second:.0f}", f"{row.others_per_second:.1f}"
        lines.append([row.others, rate, *shares, others])
    print(table(header, lines))


if __name__ == "__main__":
    print(asyncio.run(clients(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))))
