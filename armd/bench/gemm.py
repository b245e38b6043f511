"""`armd bench products`: how near to memory's own speed are products of a few rows?"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..eval.results import table
from ..runtime.atomic_files import write_figures

Packed = Literal["fp32", "int8", "bf16", "q8", "q4"]


@dataclass(frozen=True)
class Product:
    """Matrices of one kind applied to a few rows, one after the other, so that none is cached."""

    way: str
    rows: int
    seconds: float
    """For all matrices, the best of the repetitions."""
    median: float
    gb_per_second: float
    """Bytes of the matrices in float32, whatever they are stored in, over the best time."""


def bench_products(
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64),
    depth: int = 768,
    outputs: int = 4096,
    matrices: int = 16,
    weights: tuple[Packed, ...] = ("fp32", "int8", "bf16", "q8", "q4"),
    repeats: int = 7,
    threads: int | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time F.linear against the packed products of `--weights`, interleaved."""
    import torch

    from .timing import check_positive, interleave, read_bandwidth

    check_positive(rows=rows, depth=depth, outputs=outputs, matrices=matrices, threads=threads)
    check_positive(repeats=repeats)
    if threads:
        torch.set_num_threads(threads)
    bandwidth = read_bandwidth(torch.device("cpu"))
    print(f"memory reads at {bandwidth / 1e9:.1f} GB/s, {torch.get_num_threads()} threads")
    sides = build(depth, outputs, matrices, rows, weights)
    with torch.no_grad():
        times = interleave(sides, repeats=repeats, device=torch.device("cpu"))
    size, products = 4 * depth * outputs * matrices, []
    for name, time in times.items():
        way, count = name.split(" x ")
        rate = size / time.best / 1e9
        products.append(Product(way, int(count), time.best, time.median, rate))
    show(products)
    if json_file:
        settings = {"depth": depth, "outputs": outputs, "matrices": matrices, "repeats": repeats}
        settings |= {"threads": torch.get_num_threads(), "bandwidth": bandwidth}
        content = {"settings": settings, "products": [asdict(product) for product in products]}
        write_figures(json_file, content)


def build(
    depth: int, outputs: int, matrices: int, rows: tuple[int, ...], weights: tuple[Packed, ...]
) -> dict:
    """Each way at each number of rows, by name."""
    import torch
    from torch import nn

    from ..native import library as native
    from ..native.linear import SkinnyLinear

    plain = [nn.Linear(depth, outputs, bias=False) for _ in range(matrices)]
    ways: dict[str, list] = {"F.linear": plain}
    if native.library() is not None:
        for kind in weights:
            made = [SkinnyLinear(linear.weight, weights=kind) for linear in plain]
            ways[f"packed {kind}"] = made

    def run(layers: list, x: torch.Tensor):
        return lambda: [layer(x) for layer in layers]

    return {
        f"{way} x {count}": run(layers, torch.randn(count, depth))
        for way, layers in ways.items()
        for count in rows
    }


def show(products: list[Product]) -> None:
    print("GB/s of float32 weights, or of what they would be")
    lines: dict[str, list[str]] = {}
    for product in products:
        lines.setdefault(product.way, [product.way]).append(f"{product.gb_per_second:.0f}")
    rows = sorted({product.rows for product in products})
    print(table(["rows", *map(str, rows)], list(lines.values())))
