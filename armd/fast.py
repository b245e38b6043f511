"""Fast weights: a model whose products suit the few rows of a decoding pass on a CPU.

A block of S tokens passes S or 2S rows through every matrix. Stock linear layers then read memory
at a third of its speed or less, and S streams would win little. Here the matrices are laid out once
for such products (skinny.c), in float32, or in int8 at a quarter of the bytes.
"""

import copy
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from .errors import ArmdError
from .layers import Layer
from .modeling_armd import ArmdLM
from .shapes import Float, Tensor

WEIGHTS = ("plain", "fp32", "int8")
PANEL = 16
FEW = 64
"""So many rows go through the panels at a time; more would push each other out of the cache."""


class SkinnyLinear(nn.Module):
    """A linear layer without bias for a few float32 rows, its weights in float32 or int8. What it
    makes of a row does not depend, to the last bit, on the rows beside it."""

    panels: Tensor
    scale: Tensor | None

    def __init__(self, weight: Float[Tensor, "n m"], *, int8: bool) -> None:
        super().__init__()
        self.outputs, self.depth = weight.shape
        weight, scale = weight.detach(), None
        if int8:
            scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
            weight = (weight / scale[:, None]).round().to(torch.int8)
        self.register_buffer("scale", scale)
        padded = nn.functional.pad(weight, (0, 0, 0, -self.outputs % PANEL))
        self.register_buffer("panels", padded.unflatten(0, (-1, PANEL)).mT.contiguous())
        self.product = product()

    def forward(self, x: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n"]:
        rows = x.reshape(-1, self.depth).contiguous()
        count = rows.shape[0]
        out = rows.new_empty(count, self.outputs)
        scale = 0 if self.scale is None else self.scale.data_ptr()
        panels, given, made = self.panels.data_ptr(), rows.data_ptr(), out.data_ptr()
        for start in range(0, count, FEW):
            sizes = (min(FEW, count - start), self.depth, self.outputs)
            at, into = given + 4 * start * self.depth, made + 4 * start * self.outputs
            self.product(at, panels, scale, into, *sizes)
        return out.view(*x.shape[:-1], self.outputs)

    def matrix(self) -> Float[Tensor, "n m"]:
        """The weights as they count, laid out as usual."""
        weight = self.panels.mT.flatten(0, 1)[: self.outputs].float()
        return weight if self.scale is None else weight * self.scale[:, None]


class FastLM(ArmdLM):
    """An ArmdLM for decoding alone; its head is a layer of its own."""

    head: nn.Module

    def logits(self, rows: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        return self.head(rows)

    def head_matrix(self) -> Float[Tensor, "v d"]:
        return cast(SkinnyLinear, self.head).matrix()


def pack(model: ArmdLM, weights: str = "fp32") -> ArmdLM:
    """A copy of the model for decoding. It shares the embedding and the norms with the original
    and holds its own matrices. "plain" is the model itself, and so is "fp32" where it has no
    advantage: in other precisions, or without a C compiler. On CUDA "fp32" compiles the layers."""
    if weights not in WEIGHTS:
        raise ArmdError(f"no weights '{weights}'; use one of {', '.join(WEIGHTS)}")
    able = model.device.type == "cpu" and model.dtype == torch.float32 and product() is not None
    if weights == "fp32" and model.device.type == "cuda":
        return compiled(model)
    if weights == "plain" or (weights == "fp32" and not able):
        return model
    if not able:
        raise ArmdError(
            "int8 weights need a float32 model on a CPU and a C compiler (cc or gcc); install one, "
            "or use --weights plain"
        )
    # the memo makes the copy share every parameter
    fast = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    fast.__class__ = FastLM
    for part in fast.layers:
        layer = cast(Layer, part)
        for name in ("query", "key_value", "out", "gate_up", "down"):
            linear = cast(nn.Linear, getattr(layer, name))
            setattr(layer, name, SkinnyLinear(linear.weight, int8=weights == "int8"))
    cast(FastLM, fast).head = SkinnyLinear(fast.embedding.weight, int8=weights == "int8")
    return fast.eval()


def compiled(model: ArmdLM, **options: Any) -> ArmdLM:
    """A copy whose layers are compiled around the attention call: what is left has the same few
    shapes in every pass, while the cache that attention reads grows."""
    fast = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for layer in fast.layers:
        for name in ("queries", "keys_values", "finish"):
            setattr(layer, name, torch.compile(getattr(layer, name), **options))
    return fast.eval()


@cache
def product() -> Any:
    """skinny.c, compiled once for this machine and kept in the user's cache; None without a
    compiler, or where what it made does not run."""
    source = Path(__file__).with_name("skinny.c")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or platform.system() != "Linux" or not source.exists():
        return None
    library = _library(source, compiler)
    if library is None:
        return None
    function = ctypes.CDLL(str(library)).skinny_product
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3
    function.restype = None
    return function


def _library(source: Path, compiler: str) -> Path | None:
    """The compiled file, made under another name and then renamed: whole or absent."""
    flags = ["-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC"]
    machine = Path("/proc/cpuinfo").read_text().split("\n\n")[0] if platform.system() else ""
    features = [line for line in machine.splitlines() if line.startswith(("flags", "Features"))]
    told = "\n".join([source.read_text(), compiler, *flags, *features])
    name = f"skinny-{hashlib.sha256(told.encode()).hexdigest()[:16]}.so"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "armd"
    if (home / name).exists():
        return home / name
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            made = Path(folder) / name
            command = [compiler, *flags, str(source), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            made.rename(home / name)
    except (OSError, subprocess.SubprocessError):
        return None
    return home / name
