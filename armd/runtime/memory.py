"""How the process holds memory: on Linux, large tensors are kept for the next, not given back; and
how much there is, asked before anything large is allocated.

The C library returns every large block to the system when a tensor dies and fetches it anew, page
by page, for the next one of the same size; a step on a CPU spends much of its time there.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..model.errors import ArmdError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
LARGE = 1 << 26
"""Bytes of a cache that are asked for before they are taken."""
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def keep_freed_memory() -> bool:
    """Let the allocator reuse what was freed. True where this system has such a setting."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 2**30) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def give_back_memory() -> None:
    """Return what is free to the system, so that what a process holds is what it uses."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> int | None:
    """Bytes that this process may still take, as the system and its cgroups say; None elsewhere."""
    found = [*cgroup_memory()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (PROC / "meminfo").read_text().splitlines()
        facts = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
        found.append(facts.get("MemAvailable", facts["MemTotal"]) + facts.get("SwapFree", 0))
    return min(found, default=None)


def cgroup_memory() -> Iterator[int]:
    """What the limits leave of the cgroup (version 2) of this process and of those it lies in. The
    page cache counts as free, as in MemAvailable: the kernel drops it for a process that asks."""
    own = ""
    with contextlib.suppress(OSError):
        lines = (PROC / "self/cgroup").read_text().splitlines()
        own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    for group in (CGROUPS / own, *(CGROUPS / own).parents):
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / "memory.max").read_text())  # "max", no number, without a limit
            rows = (line.split() for line in (group / "memory.stat").read_text().splitlines())
            facts = {name: int(value) for name, value in rows}
            cache = facts.get("active_file", 0) + facts.get("inactive_file", 0)
            yield limit - int((group / "memory.current").read_text()) + cache
        if group == CGROUPS:
            return


def check_memory(needed: float, what: str, fix: str) -> None:
    """Raise if so many bytes are more than there are."""
    there = available_memory()
    if there is not None and needed > there:
        raise ArmdError(f"{what} needs {size(needed)} of memory, {size(there)} are free; {fix}")


def check_cache(model: Any, batch: int, length: int) -> None:
    """Raise if memory cannot hold the KV caches of so many sequences and the tables of all
    positions, whose number is the config's, which may be anybody's. Estimated from below."""
    config, kind = model.config, getattr(model, "cache_dtype", None) or model.bos.dtype
    slots = batch * (length + 1) * config.n_kv_heads * config.d_head
    positions = max(length, config.max_length) + config.right_offset
    needed = 2 * len(model.layers) * slots * kind.itemsize
    needed += 4 * positions * (config.d_head + config.d_model)
    if needed >= LARGE and model.bos.device.type == "cpu":
        what = f"the KV cache of {batch} x {length:,} tokens of {config.max_length:,}"
        check_memory(needed, what, "ask for fewer or shorter texts, or lower max_length")


def size(count: float) -> str:
    """As 12.3 GB or 45 MB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{max(0, count) / 1e6:,.0f} MB"
