"""`armd bench decode`: how fast is text written, against GPT-2 and masked diffusion?"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class Row:
    """One way to write `length` tokens, `batch` texts at a time."""

    way: str
    batch: int
    length: int
    calls: int
    """Passes of the model."""
    seconds: float
    median: float
    tokens_per_second: float
    ratio: float
    """Tokens/s over those of ARMD with one stream."""
    median_ratio: float
    bandwidth_share: float | None
    """Bytes of weights and cache a pass must read, over the measured memory bandwidth."""
    memory: int | None
    """Bytes on top of the weights."""
    measured: str
    """Whole texts, or how many passes the figure was scaled up from."""


def bench_decode(
    size: str = "small",
    length: int = 1024,
    batches: Annotated[str, tyro.conf.arg(help="texts at once, as 1,16")] = "1",
    streams: tuple[int, ...] = (1, 2, 4, 8, 16),
    weights: tuple[str, ...] = ("fp32", "int8"),
    repeats: int = 2,
    vocabulary: int = 50257,
    rivals: bool = True,
    threads: int | None = None,
    device: str = "cpu",
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time ARMD with 1, 2, 4 ... streams, the same without its cache, GPT2LMHeadModel.generate with
    its cache, and a masked-diffusion sampler of the same trunk, interleaved in one process."""
    import torch

    from ..memory import keep_freed_memory
    from .clock import read_bandwidth

    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory()
    where = torch.device(device)
    bandwidth = read_bandwidth(where)
    print(f"memory reads at {bandwidth / 1e9:.1f} GB/s, {torch.get_num_threads()} threads")
    rows = []
    for batch in map(int, batches.split(",")):
        sides = build(size, length, batch, streams, weights, vocabulary, where, rivals=rivals)
        rows += measure(sides, length, batch, repeats=repeats, bandwidth=bandwidth, device=where)
        show([row for row in rows if row.batch == batch])
    if json_file:
        settings = {"size": size, "length": length, "repeats": repeats, "device": device}
        settings |= {"threads": torch.get_num_threads(), "bandwidth": bandwidth}
        content = {"settings": settings, "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(content, indent=1))


@dataclass(frozen=True)
class Side:
    run: Callable[[], object]
    calls: int
    scale: float
    """Seconds of `run` times this are those of all calls."""
    bytes_a_call: float | None
    measured: str


def build(
    size: str,
    length: int,
    batch: int,
    streams: tuple[int, ...],
    weights: tuple[str, ...],
    vocabulary: int,
    device: Any,
    *,
    rivals: bool,
) -> dict[str, Side]:
    import torch

    from ..configuration_armd import ArmdConfig
    from ..modeling_armd import ArmdLM
    from .rivals import cacheless_side, diffusion_sides, gpt2_side

    config = ArmdConfig.named(size, vocab_size=vocabulary, max_length=length)
    model = ArmdLM(config).to(device).eval()
    prompt = torch.zeros(batch, 0, dtype=torch.long)
    sides = {}
    for kind in weights:
        for count in streams:
            if kind == weights[0] or count in (1, 4):
                sides[f"ARMD S={count} {kind}"] = _ours(model, prompt, length, count, kind)
    if rivals:
        sides["ARMD S=1, no cache"] = cacheless_side(model, batch, length)
        sides["GPT2LMHeadModel"] = gpt2_side(config, batch, length, device)
        sides |= diffusion_sides(config, batch, length, device)
    return sides


def _ours(model: Any, prompt: Any, length: int, streams: int, weights: str) -> Side:
    from ..fast import pack
    from ..generation import generate

    batch = len(prompt)
    fast = pack(model, weights)
    calls = streams + -(-length // streams) - 1
    numbers = sum(p.numel() for p in model.parameters())
    cache = 2 * model.config.n_layers * batch * (length / 2) * model.config.d_model * 4
    return Side(
        run=lambda: generate(fast, length=length, prompt=prompt, streams=streams),
        calls=calls,
        scale=1.0,
        bytes_a_call=numbers * (1 if weights == "int8" else 4) + cache,
        measured="whole",
    )


def measure(
    sides: dict[str, Side], length: int, batch: int, *, repeats: int, bandwidth: float, device: Any
) -> list[Row]:
    from .clock import interleave, peak_memory

    memory = {name: peak_memory(side.run, device) for name, side in sides.items()}
    runs = {name: side.run for name, side in sides.items()}
    times = interleave(runs, repeats=repeats, device=device, warm=True)
    first = next(iter(sides))
    base, base_median = times[first].best, times[first].median
    rows = []
    for name, side in sides.items():
        best, median = times[name].best * side.scale, times[name].median * side.scale
        share = None
        if side.bytes_a_call is not None:
            share = side.bytes_a_call * side.calls / best / bandwidth
        rows.append(
            Row(
                way=name,
                batch=batch,
                length=length,
                calls=side.calls,
                seconds=best,
                median=median,
                tokens_per_second=batch * length / best,
                ratio=base / best,
                median_ratio=base_median / median,
                bandwidth_share=share,
                memory=memory[name],
                measured=side.measured,
            )
        )
    return rows


def show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{rows[0].batch} x {rows[0].length} tokens", box=None)
    columns = ("way", "calls", "s", "tok/s", "x S=1", "median", "bandw.", "MiB", "measured")
    for column in columns:
        table.add_column(column, justify="left" if column in ("way", "measured") else "right")
    for row in rows:
        table.add_row(
            row.way,
            str(row.calls),
            f"{row.seconds:.1f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.ratio:.2f}",
            f"{row.median_ratio:.2f}",
            "-" if row.bandwidth_share is None else f"{row.bandwidth_share:.0%}",
            "-" if row.memory is None else f"{row.memory / 2**20:.0f}",
            row.measured,
        )
    Console().print(table)
