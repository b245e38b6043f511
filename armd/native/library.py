"""The C files of this folder, compiled once for this machine: what is too small or too often to be
left to torch's operations. Everything here has a form in torch too, which is taken without them."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, c_double, c_float, c_int, c_long, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

HARD = 2
"""OpenMP's word for: keep nothing."""
HEADERS = ("gemm.h", "attention.h", "layer.h", "forward.h", "sample.h")
SOURCES = ("gemm.c", "layer.c", "forward.c", "sample.c", "decode_step.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")


class Matrix(ctypes.Structure):
    """`matrix` of gemm.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("scale", c_void_p),
        ("depth", c_long),
        ("outputs", c_long),
    )


class LayerWeights(ctypes.Structure):
    """`layer` of layer.h."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query", Matrix),
        ("key_value", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("heads", c_long),
        ("epsilon", c_float),
    )


class TextRows(ctypes.Structure):
    """`text` of layer.h; layer.c has a copy and sets the last five there."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values", "slot", "limit")),
        *((name, c_long) for name in ("rows", "own", "start", "count")),
        *((name, c_long) for name in ("row", "kept", "up", "chunk", "cell")),
    )


class NetworkWeights(ctypes.Structure):
    """`network` of forward.h."""

    _fields_ = (
        ("layers", POINTER(LayerWeights)),
        ("two_stream", c_long),
        ("depth", c_long),
        ("query_norm", c_void_p),
        ("norm", c_void_p),
        ("epsilon", c_float),
        ("codes", c_long),
        ("mean", c_int),
        ("embedding", c_void_p),
        ("bos", c_void_p),
        ("head", Matrix),
    )


class PartRows(ctypes.Structure):
    """`part` of forward.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values", "state", "grown", "strict")),
        *((name, c_void_p) for name in ("low_slot", "low_limit", "high_slot", "high_limit")),
        *((name, c_long) for name in ("own", "asked", "low_start", "low_count")),
        *((name, c_long) for name in ("high_start", "high_count", "spare")),
    )


class Choice(ctypes.Structure):
    """`choice` of sample.h."""

    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("top_k", c_long),
    )


class LineRows(ctypes.Structure):
    """`line` of decode_step.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values", "state", "position", "ends", "uniform")),
        *((name, c_void_p) for name in ("known", "tokens", "logp")),
        *((name, c_void_p) for name in ("strict", "low_limit", "high_limit")),
        ("how", Choice),
        *((name, c_long) for name in ("spare", "step", "broken")),
    )


Text = tuple[int, int, int | None, int | None, int, int, int, int]
"""The fields of TextRows that are not C's own."""


def addresses(table: Tensor | None, count: int) -> list[int | None]:
    """Where each of `count` rows of a table is; nowhere without one."""
    if table is None:
        return [None] * count
    step = table.stride(0) * table.element_size()
    return [table.data_ptr() + i * step for i in range(count)]


class Places:
    """Addresses, one a layer, in a list that C can read."""

    def __init__(self, *addresses: int | None) -> None:
        self.list = (c_void_p * len(addresses))(*addresses)
        self.address = ctypes.addressof(self.list)

    def behind(self, first: int) -> int:
        """Where the list from layer `first` on stands."""
        return self.address + first * ctypes.sizeof(c_void_p)


@cache
def library() -> Any:
    """The compiled files; None without a compiler, or where what it made does not run."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    sources = [Path(__file__).with_name(name) for name in (*HEADERS, *SOURCES)]
    if compiler is None or platform.system() != "Linux" or not all(s.exists() for s in sources):
        return None
    made = _compiled(sources, compiler)
    if made is None:
        return None
    try:
        library = ctypes.CDLL(str(made))
    except OSError:  # as in a home that nothing may be run from
        return None
    address = c_void_p
    library.skinny_product.argtypes = [POINTER(Matrix), address, address, c_long]
    library.skinny_product.restype = None
    texts = [POINTER(TextRows), c_long, c_int]
    layers = [POINTER(LayerWeights), c_long]
    library.layers_pass.argtypes = [*layers, *texts, address, address, address]
    library.layers_pass.restype = c_int
    tables = [address] * 6
    library.decode_pass.argtypes = [POINTER(NetworkWeights), POINTER(PartRows), c_long, *tables]
    library.decode_pass.restype = c_int
    choices = [address, address, POINTER(Choice)]
    library.draw_rows.argtypes = [address, *choices, c_long, c_long, address, address]
    library.draw_rows.restype = c_int
    library.stroke.argtypes = [POINTER(NetworkWeights), address, c_long, *[address] * 3]
    library.stroke.restype = c_int
    return library


def release_threads() -> None:
    """Let the OpenMP threads that stand behind the calling thread go, before another thread takes
    over its work: where more threads than cores are kept, libgomp puts them to sleep at every
    barrier, and a small model's pass takes three times as long."""
    made = library()
    if made is not None and hasattr(made, "omp_pause_resource_all"):
        made.omp_pause_resource_all(HARD)


def _compiled(sources: list[Path], compiler: str) -> Path | None:
    """The library in the user's cache, made under another name, then renamed: whole or absent."""
    machine = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    features = [line for line in machine.splitlines() if line.startswith(("flags", "Features"))]
    told = "\n".join([*(s.read_text() for s in sources), compiler, *FLAGS, *features])
    name = f"armd-{hashlib.sha256(told.encode()).hexdigest()[:16]}.so"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "armd"
    if (home / name).exists():
        return home / name
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            made = Path(folder) / name
            files = [str(source) for source in sources if source.suffix == ".c"]
            command = [compiler, *FLAGS, *files, "-lm", "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            made.rename(home / name)
    except (OSError, subprocess.SubprocessError):
        return None
    return home / name
