"""The processes that torchrun started: which one is this, what is its share of the work, and how
do they exchange numbers? Alone, each of these does nothing."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..model.errors import ArmdError, first_line
from .numbers import whole_number
from .threads import own_core

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

LOST = re.compile(r"gloo|nccl|(connection|socket|pipe).*(closed|reset|broken)|timed out", re.I)
"""What torch says, by an error of no kind of its own, where another process is gone."""


@dataclass(frozen=True)
class ProcessGroup:
    """All processes, seen from one of them."""

    rank: int = 0
    world: int = 1
    on: torch.device | None = None

    @property
    def device(self) -> torch.device:
        """Where the group computes and exchanges tensors; the CPU by default."""
        import torch

        return self.on or torch.device("cpu")

    @property
    def first(self) -> bool:
        """The one process that prints and writes files for all."""
        return self.rank == 0

    def rows(self, batch_size: int) -> range:
        """This process's rows of a batch."""
        if batch_size % self.world:
            raise ArmdError(
                f"--batch-size {batch_size} does not divide over {self.world} processes; "
                f"use a multiple of {self.world}"
            )
        share = batch_size // self.world
        return range(self.rank * share, (self.rank + 1) * share)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Added up over all processes, in place; `values` lie on the group's device."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Until all processes are here."""
        self.from_first(None)

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

    def same(self, value: Any) -> bool:
        """Whether all processes have what the first one has; all get the same answer."""
        return self.total([float(self.from_first(value) != value)]) == [0]


def count_processes() -> int:
    """How many processes torchrun started, if it did. Schedulers set some of its variables, too."""
    count = os.environ.get("WORLD_SIZE") or "1"
    if count == "1":
        return 1
    world = whole_number(count, 1, 10**8) or 0
    limits = {"WORLD_SIZE": (1, world), "RANK": (0, world - 1), "MASTER_PORT": (0, 65535)}
    for name, (low, high) in limits.items():
        word = os.environ.get(name, "")
        if whole_number(word, low, high) is None:
            raise ArmdError(
                f"WORLD_SIZE '{count[:40]}' says that there are other processes, but {name} is "
                f"'{word[:40]}'; unset WORLD_SIZE, or start with torchrun"
            )
    return world


@contextmanager
def process_group(device: torch.device | None = None) -> Iterator[ProcessGroup]:
    """The processes torchrun started, or this one alone. They exchange what lies on `device`;
    without one, small things on the CPU alone."""
    if count_processes() == 1:
        on_cpu = device is None or device.type == "cpu"
        with own_core() if on_cpu else nullcontext():
            yield ProcessGroup(on=device)
        return
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    cuda = device is not None and device.type == "cuda"
    # torchrun may keep its store when it restarts workers: what the dead ones wrote there must not
    # be read again, or gloo waits for them for ever
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store, rank, world = next(rendezvous("env://"))
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=PrefixStore(f"attempt-{attempt}", store),
            rank=rank,
            world_size=world,
            device_id=device if cuda else None,
        )
    except (RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise ArmdError(f"cannot reach the other processes ({reason}); use torchrun") from None
    try:
        yield ProcessGroup(rank, world, device)
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        raise ArmdError(
            "another of the processes has ended or does not answer; its own message says why; "
            "what was saved is whole: give the same command again"
        ) from None
    finally:
        # models that still hold the group must go first: freed after it, gloo may wait for ever
        gc.collect()
        dist.destroy_process_group()
