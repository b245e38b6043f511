"""Laws: small work beside the event loop waits for no more than what is already running, large work
is done all the same, and what nobody waits for is not done."""

import threading
from concurrent.futures import Future

import pytest
from patience import PATIENCE

from armd.serve.side_work import SmallestFirst


def done_in_order(sizes: list[int], left: int | None = None) -> list[int]:
    """The sizes of work in the order in which one thread does it; all of it waits at first. The
    client of one of them has left."""
    free, begun, told = threading.Event(), threading.Event(), []
    threads = SmallestFirst(1, "test")

    def hold() -> None:
        begun.set()
        assert free.wait(PATIENCE)

    running = threads.submit(10**9, hold)
    assert begun.wait(PATIENCE)
    futures = {size: threads.submit(size, lambda size=size: told.append(size)) for size in sizes}
    if left is not None:
        assert futures[left].cancel()
    free.set()
    for future in (running, *(futures[size] for size in sizes if size != left)):
        future.result(PATIENCE)
    threads.threads.shutdown()
    return told


def test_small_work_is_next_but_one_however_much_waits() -> None:
    """With two threads it waits for those two alone: one that is free takes the smallest, or the
    other one does."""
    assert 5 in done_in_order([*range(900, 990), 5])[:2]


def test_large_work_is_done_however_much_small_work_waits() -> None:
    assert 900 in done_in_order([900, *range(1, 90)])[:2]


def test_work_that_nobody_waits_for_is_left_out() -> None:
    assert sorted(done_in_order([3, 1, 2], left=1)) == [2, 3]


def test_who_waits_is_told_what_went_wrong_and_the_thread_goes_on() -> None:
    threads = SmallestFirst(1, "test")
    failed: Future[float] = threads.submit(1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(PATIENCE)
    assert threads.submit(1, lambda: 7).result(PATIENCE) == 7
    threads.threads.shutdown()
