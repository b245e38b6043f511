"""A model over many processes: a copy on each (DDP) or a share on each (FSDP2). Alone, each of
these does nothing."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..model.shapes import Tensor
from ..runtime.processes import ProcessGroup


def wrap_model(model: nn.Module, group: ProcessGroup, kind: str) -> nn.Module:
    """The model as all processes train it: a copy on each (ddp), or a share on each (fsdp2)."""
    if group.world == 1:
        return model
    device = group.device
    if kind == "ddp":
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
    mesh = init_device_mesh(device.type, (group.world,))
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


def let_go(model: nn.Module) -> None:
    """Let go of the whole weights that a pass gathered and kept: the next pass would use them,
    though the shares they were made of have changed."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: Tensor) -> Tensor:
    """The share of a tensor that lies in this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor, group: ProcessGroup) -> int:
    """Where this process's share of a tensor begins, along its first dimension."""
    if not isinstance(tensor, DTensor):
        return 0
    share = -(-tensor.shape[0] // group.world)
    return min(group.rank * share, tensor.shape[0])


def unwrapped(model: nn.Module) -> Any:
    return model.module if isinstance(model, DistributedDataParallel) else model
