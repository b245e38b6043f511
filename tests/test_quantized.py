"""8-bit and 4-bit weights: every form of the kernel gives the bits of the plain one, and what is
stored is within half a step of what was given."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import armd
from armd.errors import ArmdError
from armd.native import build, packed
from armd.native import library as native
from armd.native.linear import BITS, PackedEmbedding, SkinnyLinear
from armd.native.quantize import quantize
from armd.native.structs import Matrix

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
KERNELS = ("gemm.c", "compact.c", "quantized.c")
NARROWER = ("-mno-avx512f", "-mno-avxvnni")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The product as compiled for this machine, its plain form, and on x86 the one of AVX2."""
    made = {"here": native.library().skinny_product}
    folder, sources = tmp_path_factory.mktemp("forms"), Path(native.__file__).parent
    files = [str(sources / file) for file in KERNELS]
    flags: dict[str, tuple[str, ...]] = {"plain": ("-DARMD_PLAIN",)}
    if " avx2 " in Path("/proc/cpuinfo").read_text():
        flags["avx2"] = NARROWER
    for name, more in flags.items():
        out = folder / f"{name}.so"
        command = [*build._compiler(), *build.FLAGS, "-O2", *more, *files, "-lm", "-o", str(out)]
        subprocess.run(command, capture_output=True, check=True)
        made[name] = ctypes.CDLL(str(out)).skinny_product
        made[name].argtypes = [ctypes.POINTER(Matrix), *[ctypes.c_void_p] * 2, ctypes.c_long]
    return made


def product(function: Any, linear: SkinnyLinear, x: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(x), linear.outputs), torch.nan)
    told = ctypes.byref(linear.address())
    assert function(told, x.data_ptr(), out.data_ptr(), len(x)) == 0
    return out


@settings(max_examples=80, deadline=None)
@given(
    weights=st.sampled_from(["fp32", "int8", "bf16", "q8", "q4"]),
    float_rows=st.booleans(),
    rows=st.integers(1, 40),
    depth=st.integers(1, 200),
    outputs=st.integers(1, 70),
    spread=st.sampled_from([1e-20, 1e-3, 1.0, 1e6]),
)
def test_every_form_gives_the_bits_of_the_plain_one(
    forms: dict[str, Any],
    weights: str,
    float_rows: bool,
    rows: int,
    depth: int,
    outputs: int,
    spread: float,
) -> None:
    g = torch.Generator().manual_seed(rows * 10007 + depth * 101 + outputs)
    weight = torch.randn(outputs, depth, generator=g)
    linear = SkinnyLinear(weight, weights=weights, float_rows=float_rows)
    x = torch.randn(rows, depth, generator=g) * spread
    x[torch.rand(x.shape, generator=g) < 0.1] = 0
    found = {name: product(function, linear, x) for name, function in forms.items()}
    for name, out in found.items():
        assert torch.equal(out, found["plain"]), name
    exact = x.double() @ linear.matrix().double().mT
    size, limit = x.double().abs(), 1e-5
    if weights in BITS and not float_rows:  # half a step of 8 bits, of the largest in a group of 32
        groups = torch.nn.functional.pad(size, (0, -depth % 32)).unflatten(1, (-1, 32))
        size = groups.amax(2, keepdim=True).expand(groups.shape).flatten(1)[:, :depth]
        limit += 0.5 / 127
    size = size @ linear.matrix().double().abs().mT + 1e-30
    assert ((found["plain"] - exact).abs() / size).max() < limit


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([8, 4]),
    depth=st.integers(1, 100),
    outputs=st.integers(1, 40),
    spread=st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
)
def test_back_from_few_bits_within_half_a_step(
    bits: int, depth: int, outputs: int, spread: float
) -> None:
    g = torch.Generator().manual_seed(depth * 101 + outputs)
    weight = torch.randn(outputs, depth, generator=g) * spread
    weight[:, ::7] = 0
    values, scale = quantize(weight, bits)
    stored = SkinnyLinear(weight, weights=f"q{bits}").matrix().double()
    told = (values.double() * scale[..., None].double()).flatten(1)[:, :depth]
    assert torch.equal(stored, told)
    step = scale.abs().double().repeat_interleave(32, 1)[:, :depth]
    clipped = (values == 7) | (values == -8) if bits == 4 else torch.zeros_like(values).bool()
    near = ((stored - weight).abs() <= step * 0.5001) | clipped.flatten(1)[:, :depth]
    assert near.all()
    plain = weight.abs().amax(1, keepdim=True).double() / (127 if bits == 8 else 8)
    error = (stored - weight).square().sum()
    assert error <= (plain.square() * 0.3).expand_as(stored).sum() * (1 if bits == 4 else 0.4)
    assert (stored[:, ::7] == 0).all()


@pytest.mark.parametrize("weights", ["q8", "q4"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_numbers_that_are_none(weights: str, broken: float) -> None:
    weight = torch.randn(20, 40)
    with pytest.raises(ArmdError, match="NaN or infinite"):
        SkinnyLinear(weight.index_fill(1, torch.tensor([3]), broken), weights=weights)
    out = SkinnyLinear(weight, weights=weights)(torch.tensor([[broken] * 40, [1.0] * 40]))
    assert out[0].isnan().all() and out[1].isfinite().all()  # a row's trouble is its own


@pytest.mark.parametrize("weights", ["q8", "q4"])
@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_come_from_the_same_bytes(weights: str, tied: bool) -> None:
    config = armd.ArmdConfig(
        vocab_size=37, d_model=48, n_layers=1, n_heads=2, max_length=8, tie_word_embeddings=tied
    )
    model = packed.pack(armd.ArmdLM(config).eval(), weights)
    table: Any = model.embedding
    assert isinstance(table, PackedEmbedding) and (table.source is model.head) == tied
    tokens = torch.tensor([[0, 36, 15], [16, 17, 36]])
    assert torch.equal(table(tokens), table.weight[tokens])
    row = torch.empty(40)
    told = ctypes.byref(table.source.address())
    native.library().weight_row(told, 36, 5, 40, row.data_ptr())
    assert torch.equal(row, table.weight[36, 5:45])
