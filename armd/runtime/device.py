"""Which device does a name mean, and is it here?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..model.errors import ArmdError

if TYPE_CHECKING:
    import torch


def find_device(name: str | None) -> torch.device:
    """The device of that name, if it is here. `auto` or None: the GPU of this process, or the CPU.
    Under torchrun, `cuda` is the GPU of this process."""
    import torch

    if name in (None, "auto"):
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    wrong = ArmdError(f"no device '{name}' here; use cpu, or cuda:N on a machine with it")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError, ImportError):
        raise wrong from None
    if device.type == "meta":  # exists everywhere, and computes nothing
        raise wrong
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
