"""`armd bench decode`: how fast is text written, against GPT-2 and masked diffusion?"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..errors import ArmdError
from ..eval.results import table
from ..runtime.atomic_files import write_figures

REST = 0.25
"""Seconds before each side where there are peers: threads of some spin for 0.2 s for more work."""
READINGS = 64
"""Sums over memory, one after the other, that its speed is read off."""


@dataclass(frozen=True)
class Row:
    """One way to write `length` tokens, `batch` texts at a time."""

    way: str
    batch: int
    length: int
    calls: int
    """Passes of the model."""
    seconds: float
    """Of the whole text; the best repetition, and the median of all."""
    median: float
    tokens_per_second: float
    ratio: float
    """Tokens/s over those of one stream of the same model; of baselines, of the first model."""
    median_ratio: float
    bandwidth_share: float | None
    """Bytes of weights and cache a pass must read, over the measured memory bandwidth: of the best,
    and of the medians."""
    median_share: float | None
    memory: int | None
    """Bytes on top of the weights."""
    measured: str
    """Whole texts, or what the figure was scaled up from."""


@dataclass(frozen=True)
class Side:
    """A way to write, and how to time it."""

    run: Callable[[], float]
    """Seconds of some of the calls, or of all."""
    calls: int
    scale: float
    """Seconds of `run` times this are those of all calls."""
    bytes_a_call: float | None
    measured: str
    peak: Callable[[], object]
    """What to run to see how much memory it takes."""


def bench_decode(
    size: str = "small",
    length: int = 1024,
    batches: Annotated[str, tyro.conf.arg(help="texts at once, as 1,16")] = "1",
    streams: tuple[int, ...] = (1, 2, 4, 8, 16),
    weights: tuple[str, ...] = ("fp32", "int8"),
    queries: tuple[str, ...] = ("prefix", "neighbor"),
    repeats: int = 5,
    passes: int = 8,
    vocabulary: int = 50257,
    cache: Literal["fp32", "bf16"] = "fp32",
    baselines: Annotated[bool, tyro.conf.arg(aliases=["--rivals"])] = True,
    peers: bool = False,
    model: str | None = None,
    threads: int | None = None,
    device: str = "cpu",
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time ARMD with 1, 2, 4 ... streams and either query, the same without its cache,
    GPT2LMHeadModel.generate with its cache, and a masked-diffusion sampler of the same trunk,
    interleaved in one process.

    Of ARMD and GPT-2 `passes` calls are timed at each of five depths of the text, evenly spread
    (fewer where a call has many rows), and scaled up; `--passes 0` times whole texts. `--peers`
    times llama.cpp and CTranslate2, too, with random weights of the same shape, where they are
    installed; `--model` takes the size, and llama.cpp's and our weights, from a folder of ours
    instead, such as one that armd convert has made."""
    import torch

    from ..model.configuration_armd import ArmdConfig
    from ..model.modeling_armd import ArmdLM
    from ..runtime.device import find_device
    from ..runtime.memory import keep_freed_memory
    from ..runtime.threads import pin_threads
    from .timing import PAUSE, check_positive, numbers

    check_positive(streams=streams, vocabulary=vocabulary, threads=threads, repeats=repeats)
    check_positive(length=length, passes=passes or None)
    if length <= max(streams, default=0):
        raise ArmdError(f"--length {length} must be more than --streams {max(streams)}")
    if threads:
        pin_threads(threads)
    keep_freed_memory()
    where = find_device(device)
    rows, bandwidths = [], []
    for batch in numbers(batches, "batches"):
        config = ArmdConfig.named(size, vocab_size=vocabulary, max_length=length)
        sides, options = {}, {"passes": passes, "keep": cache}
        if model is not None:
            loaded = load_for(model, length, where)
            config = ArmdConfig(**{**loaded.config.to_dict(), "max_length": length})
            sides |= our_sides(loaded, batch, length, streams, weights, **options)
        for query in queries if model is None else ():
            ours = ArmdConfig(**{**config.to_dict(), "query": query, "n_two_stream": None})
            made: Any = ArmdLM(ours)
            sides |= our_sides(made.to(where).eval(), batch, length, streams, weights, **options)
        if baselines:
            sides |= baseline_sides(config, batch, where, passes=passes)
        if peers:
            from .peer_ctranslate2 import ctranslate2_sides
            from .peers import llama_sides

            sides |= llama_sides(config, batch, length=length, passes=passes, model=model)
            sides |= ctranslate2_sides(config, batch, length=length, passes=passes)
        rest = REST if peers else PAUSE
        found, bandwidth = measure(sides, length, batch, repeats=repeats, device=where, rest=rest)
        print(f"memory reads at {bandwidth / 1e9:.1f} GB/s, {torch.get_num_threads()} threads")
        show(found)
        rows += found
        bandwidths.append(bandwidth)
    if json_file:
        settings = {"size": size, "length": length, "repeats": repeats, "passes": passes}
        settings |= {"model": model and Path(model).name, "cache": cache}
        settings |= {"device": device, "threads": torch.get_num_threads(), "bandwidth": bandwidths}
        content = {"settings": settings, "rows": [asdict(row) for row in rows]}
        write_figures(json_file, content)


def load_for(path: str, length: int, device: Any) -> Any:
    """The model of a folder, if it takes texts of this length."""
    from ..model.modeling_armd import ArmdLM
    from ..pretrained import load_model

    model = load_model(path, device=str(device))
    if not isinstance(model, ArmdLM):
        raise ArmdError(f"{path} is a diffusion model; name a folder of armd's own kind")
    if model.config.max_length < length:
        raise ArmdError(f"{path} takes {model.config.max_length} tokens; use a shorter --length")
    return model


def our_sides(
    model: Any,
    batch: int,
    length: int,
    streams: tuple[int, ...],
    weights: tuple[str, ...],
    *,
    passes: int,
    keep: str,
) -> dict[str, Side]:
    """`keep`: the format of keys and values."""
    import torch

    from ..generation.kv_cache import make_cache
    from ..native.packed import pack, with_cache
    from .armd_decode import our_side

    name = "neighbor" if model.config.query == "neighbor" else "ARMD"
    sides, packs = {}, {kind: with_cache(pack(model, kind), keep) for kind in weights}
    with torch.no_grad():
        cache = make_cache(packs[weights[0]], batch=batch, length=length)
    for kind, packed in packs.items():
        for count in streams:
            side = our_side(packed, cache, count, passes=passes, weights=kind)
            sides[f"{name} S={count} {kind}"] = side
    return sides


def baseline_sides(config: Any, batch: int, device: Any, *, passes: int) -> dict[str, Side]:
    from ..model.modeling_armd import ArmdLM
    from .baseline_decode import cacheless_side, diffusion_sides, gpt2_side

    length, model = config.max_length, ArmdLM(config).to(device).eval()
    return {
        "ARMD S=1, no cache": cacheless_side(model, batch, length),
        "GPT2LMHeadModel": gpt2_side(config, batch, length, device, passes=passes),
        **diffusion_sides(config, batch, length, device),
    }


def measure(
    sides: dict[str, Side], length: int, batch: int, *, repeats: int, device: Any, rest: float
) -> tuple[list[Row], float]:
    """All sides and memory itself in turn, `repeats` times, after a turn that warms up and sees how
    much memory each takes. Memory is read for about as long as a side runs: one quick reading more
    would find it faster than it is. The rows, and bytes/s of the best turn."""
    import torch

    from .timing import memory_reader, peak_memory, timed

    memory = {name: peak_memory(side.peak, device) for name, side in sides.items()}
    data = torch.ones(96 * 2**20, device=device)
    reader = memory_reader(data)
    reads: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        read = timed(lambda: [reader() for _ in range(READINGS)], device) / READINGS
        taken = {}
        for name, side in sides.items():
            time.sleep(rest)
            taken[name] = side.run() * side.scale
        if turn:  # the first warms up
            reads.append(read)
            for name, seconds in taken.items():
                times[name].append(seconds)
    bandwidths = [data.numel() * data.element_size() / read for read in reads]
    best, usual = max(bandwidths), statistics.median(bandwidths)
    rows, first = [], next(iter(sides))
    near = next((name for name in sides if name.startswith("neighbor")), first)
    for name, side in sides.items():
        base = times[near if name.startswith("neighbor") else first]
        fastest, median = min(times[name]), statistics.median(times[name])
        needed = None if side.bytes_a_call is None else side.bytes_a_call * side.calls
        rows.append(
            Row(
                way=name,
                batch=batch,
                length=length,
                calls=side.calls,
                seconds=fastest,
                median=median,
                tokens_per_second=batch * length / fastest,
                ratio=min(base) / fastest,
                median_ratio=statistics.median(base) / median,
                bandwidth_share=None if needed is None else needed / fastest / best,
                median_share=None if needed is None else needed / median / usual,
                memory=memory[name],
                measured=side.measured,
            )
        )
    return rows, best


def show(rows: list[Row]) -> None:
    print(f"{rows[0].batch} x {rows[0].length} tokens")
    header = ["way", "calls", "s", "tok/s", "x S=1", "median", "bandw.", "median", "MiB"]
    lines = [
        [
            row.way,
            str(row.calls),
            f"{row.seconds:.1f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.ratio:.2f}",
            f"{row.median_ratio:.2f}",
            *("-" if s is None else f"{s:.0%}" for s in (row.bandwidth_share, row.median_share)),
            "-" if row.memory is None else f"{row.memory / 2**20:.0f}",
            row.measured,
        ]
        for row in rows
    ]
    print(table([*header, "measured"], lines))
