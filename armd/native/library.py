"""The C files of this folder, compiled once for this machine: what is too small or too often to be
left to torch's operations. Everything here has a form in torch too, which is taken without them."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from .structs import declare

HARD = 2
"""OpenMP's word for: keep nothing."""
HEADERS = ("gemm.h", "attention.h", "layer.h", "forward.h", "sample.h", "one_stream.h")
SOURCES = ("gemm.c", "layer.c", "forward.c", "one_stream.c", "sample.c", "decode_step.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")


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
    return declare(library)


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
