"""The C files of this folder as a library: decode steps that are too short for torch's operations.
Without a compiler the same results come from torch, more slowly; int8 weights need the library."""

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

from .build import CannotCompile, library_file
from .structs import declare

HARD = 2
"""omp_pause_hard: OpenMP gives up its threads and what it keeps for them."""
HEADERS = (
    "gemm.h",
    "compact.h",
    "quantized_dot.h",
    "vectors.h",
    "attention.h",
    "adapter.h",
    "layer.h",
    "forward.h",
    "sample.h",
    "one_stream.h",
)
SOURCES = ("gemm.c", "compact.c", "compact_pack.c", "quantized.c", "layer.c", "forward.c")
SOURCES += ("one_stream.c", "sample.c", "decode_step.c", "read_memory.c", "search_scales.c")
SOURCES += ("checksum.c",)


@cache
def library() -> Any:
    """The compiled library, or None; then the reason is printed, once."""
    sources = [Path(__file__).with_name(name) for name in (*HEADERS, *SOURCES)]
    reason = ""
    for anew in (False, True):
        try:
            return declare(ctypes.CDLL(str(library_file(sources, anew=anew))))
        except CannotCompile as error:
            reason = str(error)
            break
        except (OSError, AttributeError) as error:  # not to be run from there, or lacks a function
            reason = str(error).splitlines()[0]
    print(
        f"armd: warning: the C kernels are not to be had ({reason}); decoding is up to ten times "
        "slower without: install a C compiler (gcc, clang or Xcode's tools), or name one in CC",
        file=sys.stderr,
    )
    return None


def release_threads() -> None:
    """Let the OpenMP threads that stand behind the calling thread go, before another thread takes
    over its work: where more threads than cores are kept, libgomp puts them to sleep at every
    barrier, and a small model's pass takes three times as long."""
    made = library()
    if made is not None and hasattr(made, "omp_pause_resource_all"):
        made.omp_pause_resource_all(HARD)
