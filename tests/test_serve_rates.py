"""What costs the server much has a bounded rate, and whoever has had the least comes first."""

import asyncio
import time
from functools import partial

import pytest

from armd.serve import pace, security
from armd.serve.pace import Pace
from armd.serve.security import SecurityMiddleware


def test_the_lowest_rank_comes_first_at_a_bounded_rate() -> None:
    done: list[str] = []

    def work(name: str) -> int:
        done.append(name)
        return 100

    async def wait_for_all() -> None:
        made = Pace(asyncio.get_running_loop(), 2000)
        for name, rank in (("last", (1, 0)), ("third", (0, 90)), ("second", (0, 10))):
            made.add(rank, partial(work, name), lambda: False)
        made.add((0, 0), partial(work, "first"), lambda: False)
        made.add((0, 0), partial(work, "over"), lambda: True)
        while len(done) < 4:
            await asyncio.sleep(0.001)

    began = time.monotonic()
    asyncio.run(wait_for_all())
    assert done == ["first", "third", "second", "last"]  # the oldest every second time
    assert time.monotonic() - began >= 3 * 100 / 2000 - pace.CREDIT


def test_nothing_waits_for_ever_behind_what_is_smaller() -> None:
    done: list[str] = []

    async def small_ones(made: Pace) -> None:
        while "large" not in done and len(done) < 1000:
            if await made.turn(1, 1, lambda: False):
                done.append("small")

    async def large_one(made: Pace) -> None:
        await made.turn(1, 1000, lambda: False)
        done.append("large")

    async def all_of_them() -> None:
        made = Pace(asyncio.get_running_loop(), 1000)
        await asyncio.gather(*(small_ones(made) for _ in range(20)), large_one(made))

    asyncio.run(all_of_them())
    assert done.index("large") < 3 * 20


def test_who_gave_up_takes_no_time() -> None:
    """Or whose own time is over."""
    done: list[str] = []

    async def one(made: Pace, name: str, read: int, gone: bool = False) -> None:
        if await made.turn(200, read, lambda: gone):
            done.append(name)

    async def all_of_them() -> None:
        made = Pace(asyncio.get_running_loop(), 1000)
        await asyncio.gather(
            one(made, "small", 0),
            one(made, "larger", 300),
            one(made, "large", 200),
            *(one(made, "gone", 100, gone=True) for _ in range(100)),
            *(asyncio.wait_for(one(made, "late", 150), 0.01) for _ in range(100)),
            return_exceptions=True,
        )
        assert not made.waiting

    began = time.monotonic()
    asyncio.run(all_of_them())
    assert (
        sorted(done) == ["large", "larger", "small"] and time.monotonic() - began < 100 * 200 / 1000
    )


def test_large_bodies_of_all_clients_share_one_rate_and_small_ones_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SecurityMiddleware(print, host="127.0.0.1", max_body=1 << 20, count=print)

    async def read(sizes: list[int]) -> None:
        left = [{"type": "http.request", "body": b"a" * n, "more_body": True} for n in sizes]
        left[-1]["more_body"] = False

        async def receive() -> dict:
            return left.pop(0)

        assert (await made._read(receive))[0] is None

    async def all_of_them() -> float:
        loop = asyncio.get_running_loop()
        for _ in range(9):
            await read([security.SMALL_BODY])
        assert not pace.pace_of(loop, "bodies").free_at
        for _ in range(3):
            await read([security.SMALL_BODY, 100])
        return pace.pace_of(loop, "bodies").free_at - loop.time()

    monkeypatch.setitem(pace.RATES, "bodies", 1000)
    began = time.monotonic()
    ahead = asyncio.run(all_of_them())
    assert time.monotonic() + ahead - began >= 3 * 100 / 1000 - pace.CREDIT


def test_requests_that_come_at_once_are_begun_a_few_in_each_iteration() -> None:
    """In their order, and others have their iterations in between."""
    begun: list[int] = []

    async def all_of_them() -> None:
        starts = pace.Starts(asyncio.get_running_loop())
        for number in range(100):
            starts.add(partial(begun.append, number))
        assert len(begun) == pace.STARTS
        while len(begun) < 100:
            before = len(begun)
            await asyncio.sleep(0)
            assert len(begun) <= before + pace.STARTS
        await asyncio.sleep(0)
        starts.add(partial(begun.append, 100))
        assert begun == list(range(101))

    asyncio.run(all_of_them())
