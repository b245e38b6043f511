"""How the process holds memory: on Linux, large tensors are kept for the next, not given back.

The C library returns every large block to the system when a tensor dies and fetches it anew, page
by page, for the next one of the same size; a step on a CPU spends much of its time there.
"""

import contextlib
import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Let the allocator reuse what was freed. True if this system could be told so."""
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
