"""Sharing work over the processes that torchrun started; alone, each of these does nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

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

    def total(self, mine: Sequence[float]) -> list[float]:
        """Added up over all processes, in float64; every process gets the sums."""
        if self.world == 1:
            return list(mine)
        import torch
        import torch.distributed as dist

        values = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(values)
        return values.tolist()

    def from_first(self, value: Any) -> Any:
        """What the first process says."""
        if self.world == 1:
            return value
        import torch.distributed as dist

        said = [value]
        dist.broadcast_object_list(said)
        return said[0]


@contextmanager
def joined(device: torch.device | None = None) -> Iterator[Ranks]:
    """The processes torchrun started, or this one alone. They exchange what lies on `device`;
    without one, small things on the CPU alone."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Ranks()
        return
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    cuda = device is not None and device.type == "cuda"
    store, rank, world = next(rendezvous("env://"))
    # torchrun may keep its store when it restarts workers: what the dead ones wrote there must not
    # be read again, or gloo waits for them for ever
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=PrefixStore(f"attempt-{attempt}", store),
        rank=rank,
        world_size=world,
        device_id=device if cuda else None,
    )
    try:
        yield Ranks(rank, world)
    finally:
        # models that still hold the group must go first: freed after it, gloo may wait for ever
        gc.collect()
        dist.destroy_process_group()


def device_here(name: str) -> str:
    """`cuda` is the GPU of this process."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name
