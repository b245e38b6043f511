"""`python -m armd.bench.load`: does a server stand many clients, of whom some go away?

Each client asks for one of a few texts, again and again; a share of them break off in the middle.
Every answer that was finished must be the one that the same request got when nobody else was there.
At the end all slots must be free, and the memory what it was.
"""

import asyncio
import json as json_format
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tyro

from ..errors import ArmdError
from ..runtime.atomic_files import write_figures
from ..runtime.numbers import whole_number

Address = tuple[str, int]


def client_of(address: Address) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://{address[0]}:{address[1]}", timeout=None, trust_env=False, verify=False
    )


async def ask(address: Address, path: str, body: Any = None) -> httpx.Response:
    """The whole answer: of a GET, or of a POST with a body."""
    async with client_of(address) as client:
        return await (client.get(path) if body is None else client.post(path, json=body))


async def listen(address: Address, path: str, body: Any) -> AsyncIterator[tuple[float, Any]]:
    """The events of a streamed answer, each with the seconds since the request was sent; None for
    the closing [DONE]."""
    start = time.perf_counter()
    async with client_of(address) as client, client.stream("POST", path, json=body) as answer:
        if answer.status_code != 200:
            raise ConnectionError(f"status {answer.status_code}")
        async for line in answer.aiter_lines():
            if content := line.removeprefix("data: "):
                event = None if content == "[DONE]" else json_format.loads(content)
                yield time.perf_counter() - start, event


@dataclass(frozen=True)
class Load:
    """Ask a running server from many sides at once."""

    url: tyro.conf.Positional[str] = "127.0.0.1:8000"
    """Its host and port."""
    clients: int = 100
    seconds: float = 30.0
    leaving: float = 1 / 3
    """The share of clients that break off in the middle."""
    kinds: int = 16
    """How many different requests there are."""
    max_tokens: int = 24
    seed: int = 0
    json: Path | None = None
    """The figures go here."""


@dataclass
class Outcome:
    finished: int = 0
    left: int = 0
    refused: int = 0
    """429: asked to come again, and did."""
    wrong: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    memory_before: float = 0.0
    memory_after: float = 0.0


def request_of(index: int, job: Load) -> tuple[str, dict[str, Any]]:
    """Requests of every kind, each with a seed: plain, streamed, with streams, with blanks."""
    words = ["The", "My fellow citizens", "It is the", "", "We have"]
    body: dict[str, Any] = {"seed": index, "stream": index % 2 == 0, "streams": 1 + index % 3}
    if index % 4 == 3:
        return "/v1/infill", body | {"text": f"The ____ and {words[index % 5]} ____.", "rivals": 1}
    return "/v1/completions", body | {
        "prompt": words[index % 5],
        "max_tokens": job.max_tokens + index,
        "logprobs": 1,
    }


async def written(address: Address, path: str, body: dict[str, Any]) -> tuple[str, list[Any]]:
    """The text of an answer, and its log-probabilities; or why there is none."""
    if not body["stream"]:
        answer = await ask(address, path, body)
        if answer.status_code != 200:
            return f"status {answer.status_code}", []
        found = answer.json()
        events = [found["start"], *found["steps"], found["end"]] if "start" in found else [found]
    else:
        line = [event async for _, event in listen(address, path, body)]
        if path == "/v1/completions" and line[-1] is not None:
            return "broken off", []
        events = [event for event in line if event is not None]
    if path == "/v1/infill":
        landed = [(a["position"], a["token"], a["logprob"]) for e in events[1:-1] for a in e["at"]]
        return events[-1]["text"], landed
    choices = [event["choices"][0] for event in events]
    logp = [p for choice in choices for p in choice["logprobs"]["token_logprobs"]]
    return "".join(choice["text"] for choice in choices), logp


async def leave(address: Address, path: str, body: dict[str, Any], wait: float) -> None:
    """Begin, and go away in the middle, even before the first word."""
    task = asyncio.create_task(ask(address, path, body))
    await asyncio.wait((task,), timeout=wait)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def client(
    number: int, job: Load, address: Address, alone: list[Any], outcome: Outcome
) -> None:
    chance, until = random.Random(f"{job.seed} {number}"), time.monotonic() + job.seconds
    leaves = number < job.clients * job.leaving
    while time.monotonic() < until:
        index = chance.randrange(job.kinds)
        path, body = request_of(index, job)
        if leaves:
            await leave(address, path, body, chance.random() ** 4 / 2)  # often at once
            outcome.left += 1
            continue
        try:
            found = await written(address, path, body)
        except (ConnectionError, httpx.HTTPError) as error:
            found = (str(error), [])
        if found[0] == "status 429":
            outcome.refused += 1
            await asyncio.sleep(0.2 + 0.3 * chance.random())
        elif found != alone[index]:
            outcome.wrong.append(f"request {index}: {found} instead of {alone[index]}"[:500])
        else:
            outcome.finished += 1
            outcome.tokens += len(found[1])


async def reading(address: Address) -> dict[str, float]:
    """The plain numbers of /metrics."""
    lines = (await ask(address, "/metrics")).text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


async def at_rest(address: Address, seconds: float = 20.0) -> dict[str, float]:
    """The metrics once nothing is under way."""
    until = time.monotonic() + seconds
    while True:
        now = await reading(address)
        if now["armd_slots_taken"] == now["armd_waiting"] == 0:
            return now
        if time.monotonic() > until:
            raise RuntimeError(f"{now['armd_slots_taken']:.0f} slots are stuck")
        await asyncio.sleep(0.1)


def address_of(url: str) -> Address:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or (number := whole_number(port, 1, 65535)) is None:
        raise ArmdError(f"'{url[:80]}' is no host and port; write 127.0.0.1:8000")
    return host, number


async def put_load(job: Load) -> Outcome:
    address, outcome = address_of(job.url), Outcome()
    alone = [await written(address, *request_of(index, job)) for index in range(job.kinds)]
    outcome.memory_before = (await at_rest(address))["process_resident_memory_bytes"]
    start = time.monotonic()
    everyone = (client(n, job, address, alone, outcome) for n in range(job.clients))
    await asyncio.gather(*everyone)
    outcome.seconds = time.monotonic() - start
    outcome.memory_after = (await at_rest(address))["process_resident_memory_bytes"]
    return outcome


def main() -> None:
    job = tyro.cli(Load, prog="python -m armd.bench.load")
    try:
        outcome = asyncio.run(put_load(job))
    except httpx.ConnectError:
        sys.exit("nobody listens at that address; start armd serve there first")
    except ArmdError as error:
        sys.exit(str(error))
    grown = (outcome.memory_after - outcome.memory_before) / 2**20
    print(
        f"{outcome.finished} answers as if alone, {len(outcome.wrong)} wrong, {outcome.left} "
        f"broken off, {outcome.refused} refused for now; {outcome.tokens / outcome.seconds:.0f} "
        f"tokens/s over {outcome.seconds:.0f} s; memory {grown:+.1f} MiB; all slots free"
    )
    if job.json:
        write_figures(job.json, asdict(outcome))
    if outcome.wrong:
        print("\n".join(outcome.wrong[:5]), file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
