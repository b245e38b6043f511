"""Many processes: who am I, which rows are mine, and how a model is spread over all of us. Alone,
each of these does nothing."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..errors import ArmdError
from ..model.shapes import Tensor
from ..runtime import processes as sharing


@dataclass(frozen=True)
class Group:
    """All processes of a run, seen from one of them."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """The one process that prints and writes what belongs to all."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Added up over all processes."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def from_first(self, number: int) -> int:
        """What the first process says."""
        value = torch.tensor([number if self.first else 0], device=self.device)
        return int(self.sum(value))

    def wait(self) -> None:
        self.from_first(0)

    def rows(self, batch_size: int) -> range:
        """This process's share of a batch."""
        if batch_size % self.world:
            raise ArmdError(
                f"--batch-size {batch_size} does not divide over {self.world} processes; "
                f"use a multiple of {self.world}"
            )
        share = batch_size // self.world
        return range(self.rank * share, (self.rank + 1) * share)


def find_device(name: str) -> torch.device:
    """`auto` is this process's GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArmdError(f"no device '{name}'; use auto, cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ArmdError(f"no CUDA device here; use --device cpu instead of {name}")
        index = device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0))
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def joined(device_name: str) -> Iterator[Group]:
    """The group that torchrun started this process in, or a group of one."""
    device = find_device(device_name)
    with sharing.joined(device) as ranks:
        yield Group(ranks.rank, ranks.world, device)


def spread(model: nn.Module, group: Group, kind: str) -> nn.Module:
    """The model as all processes train it: a copy on each (ddp), or a share on each (fsdp2)."""
    if group.world == 1:
        return model
    if kind == "ddp":
        return DistributedDataParallel(
            model,
            device_ids=[group.device.index] if group.device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
    mesh = init_device_mesh(group.device.type, (group.world,))
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh)  # type: ignore[arg-type]
    fully_shard(model, mesh=mesh)
    return model


@contextlib.contextmanager
def gradients_shared(model: nn.Module, now: bool) -> Iterator[None]:
    """Exchange gradients in this backward pass, or keep adding them up where they are."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
        yield
    elif isinstance(model, DistributedDataParallel) and not now:
        with model.no_sync():
            yield
    else:
        yield


def local(tensor: Tensor) -> Tensor:
    """The share of a tensor that lies in this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor, group: Group) -> int:
    """Where this process's share of a tensor begins, along its first dimension."""
    if not isinstance(tensor, DTensor):
        return 0
    share = -(-tensor.shape[0] // group.world)
    return min(group.rank * share, tensor.shape[0])


def unwrapped(model: nn.Module) -> Any:
    return model.module if isinstance(model, DistributedDataParallel) else model
