"""Sharing work over the processes that torchrun started; alone, each of these does nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Ranks:
    """All processes, seen from one of them."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """What this process does: every world-th item."""
        return items[self.rank :: self.world]

    def gather(self, mine: Any) -> list[Any]:
        """What every process gives, at the first; nothing at the others."""
        if self.world == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] | None = [None] * self.world if self.first else None
        dist.gather_object(mine, found)
        return found or []

    def from_first(self, value: Any) -> Any:
        """What the first process says."""
        if self.world == 1:
            return value
        import torch.distributed as dist

        said = [value]
        dist.broadcast_object_list(said)
        return said[0]


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes torchrun started, or this one alone."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Ranks()
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")  # only small Python objects are exchanged
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def device_here(name: str) -> str:
    """`cuda` is the GPU of this process."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name
