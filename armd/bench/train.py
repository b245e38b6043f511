"""`armd bench train`: what does a training step cost, against AR and against GPT-2?"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..eval.results import table
from ..runtime.atomic_files import write_figures

RHO = 32
STREAMS = 4


@dataclass(frozen=True)
class Side:
    """A model, and the order that it is trained in."""

    model: Any
    order: Any = None
    """Left to right if None."""


@dataclass(frozen=True)
class Row:
    """One model's step: forward and backward."""

    model: str
    length: int
    seconds: float
    median: float
    tokens_per_second: float
    ratio_to_ar: float
    median_ratio: float
    flop_ratio: float
    peak_share: float
    """Of the GEMM rate measured in the same run."""
    memory: int | None
    """Bytes on top of the weights, gradients among them."""


def bench_train(
    size: str = "small",
    two_stream: tuple[int, ...] = (3, 6, 9, 12),
    lengths: Annotated[
        str, tyro.conf.arg(help="texts of these lengths, as 256,1024,4096")
    ] = "1024",
    batch: int = 1,
    repeats: int = 5,
    gpt2: bool = True,
    vocabulary: int = 50257,
    compile: bool = False,
    loop: Annotated[
        Path | None, tyro.conf.arg(help="a prepared dataset: time the training loop on it instead")
    ] = None,
    threads: int | None = None,
    device: str = "cpu",
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time forward and backward of ARMD at several L2s and with the neighbor query in three orders,
    of AR (the same layers, one stream) and of transformers' GPT2LMHeadModel, interleaved in one
    process."""
    import torch

    from ..runtime.device import find_device
    from .timing import check_positive, gemm_peak, numbers

    check_positive(two_stream=two_stream, batch=batch, vocabulary=vocabulary, threads=threads)
    check_positive(repeats=repeats)
    texts = numbers(lengths, "lengths")
    if threads:
        torch.set_num_threads(threads)
    if loop is not None:
        from .train_loop import report_loop

        figures = report_loop(str(loop))
        if json_file:
            write_figures(json_file, figures)
        return
    where = find_device(device)
    peak = gemm_peak(where)
    print(f"GEMM peak {peak / 1e9:.0f} GFLOP/s, {torch.get_num_threads()} threads, batch {batch}")
    rows = []
    for length in texts:
        models = build(size, two_stream, length, vocabulary, gpt2=gpt2)
        for name, model in models.items():
            models[name] = torch.compile(model.to(where)) if compile else model.to(where)
        sides = with_orders(models, length, batch)
        rows += measure(sides, length, batch=batch, repeats=repeats, peak=peak, device=where)
        show([row for row in rows if row.length == length])
    if json_file:
        settings = {"size": size, "batch": batch, "repeats": repeats, "device": device}
        settings |= {"threads": torch.get_num_threads(), "gemm_peak": peak, "compile": compile}
        content = {"settings": settings, "rows": [asdict(row) for row in rows]}
        write_figures(json_file, content)


def build(
    size: str, two_stream: tuple[int, ...], length: int, vocabulary: int, *, gpt2: bool
) -> dict[str, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    from ..model.configuration_armd import ArmdConfig
    from ..model.modeling_armd import ArmdLM

    sizes = {"vocab_size": vocabulary, "max_length": length, "dropout": 0.0}
    config = ArmdConfig.named(size, query="shift", **sizes)
    models: dict[str, Any] = {"AR": ArmdLM(config)}
    for count in sorted({min(count, config.n_layers) for count in two_stream}):
        models[f"ARMD L2s={count}"] = ArmdLM(ArmdConfig.named(size, n_two_stream=count, **sizes))
    models["neighbor"] = ArmdLM(ArmdConfig.named(size, query="neighbor", **sizes))
    if gpt2:
        same = {"n_layer": config.n_layers, "n_embd": config.d_model, "n_head": config.n_heads}
        zero = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        models["GPT2LMHeadModel"] = GPT2LMHeadModel(
            GPT2Config(vocab_size=vocabulary, n_positions=length, **same, **zero)
        )
    return models


def with_orders(models: dict[str, Any], length: int, batch: int) -> dict[str, Side]:
    """Left to right, and for the neighbor query, whose cost depends on it, other orders too."""
    import torch

    from ..model import order as orders

    sides: dict[str, Side] = {}
    for name, model in models.items():
        sides[name] = Side(model)
        if name == "neighbor":
            generator, rho = torch.Generator().manual_seed(0), min(RHO, length)
            drawn = [orders.shuffled(length, rho, generator=generator) for _ in range(batch)]
            streams = min(STREAMS, length)
            sides[f"{name} S={streams}"] = Side(model, orders.strided(length, streams))
            sides[f"{name} rho={rho}"] = Side(model, orders.stack(drawn))
    return sides


def measure(
    sides: dict[str, Side], length: int, *, batch: int, repeats: int, peak: float, device: Any
) -> list[Row]:
    import torch

    from ..runtime.memory import keep_freed_memory
    from .timing import interleave, peak_memory

    ar = sides["AR"]
    tokens = torch.randint(ar.model.config.vocab_size, (batch, length), device=device)

    def step(side: Side) -> Callable[[], object]:
        order = {} if side.order is None else {"order": side.order.to(device)}

        def run() -> None:
            side.model.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = side.model(tokens, labels=tokens, **order).loss
            loss.backward()

        return run

    steps = {name: step(side) for name, side in sides.items()}
    memory = {}
    for name, run in steps.items():
        sides[name].model.zero_grad(set_to_none=True)  # sides may share a model
        memory[name] = peak_memory(run, device)
    keep_freed_memory()
    times = interleave(steps, repeats=repeats, device=device, warm=True)
    flops = {
        name: step_flops(ar if name.startswith("GPT2") else side, length, batch)
        for name, side in sides.items()
    }
    return [
        Row(
            model=name,
            length=length,
            seconds=taken.best,
            median=taken.median,
            tokens_per_second=batch * length / taken.best,
            ratio_to_ar=taken.best / times["AR"].best,
            median_ratio=taken.median / times["AR"].median,
            flop_ratio=flops[name] / flops["AR"],
            peak_share=flops[name] / taken.best / peak,
            memory=memory[name],
        )
        for name, taken in times.items()
    ]


def step_flops(side: Side, length: int, batch: int) -> float:
    """Forward and backward, with the extra rows of the side's order."""
    from ..model.neighbor import needs_extra_row
    from .flops import forward_flops

    extra = 0
    if side.order is not None and side.model.config.query == "neighbor":
        extra = int(needs_extra_row(side.order).sum(1).max())
    return 3 * forward_flops(side.model.config, length, batch=batch, extra_rows=extra)


def show(rows: list[Row]) -> None:
    print(f"forward and backward, {rows[0].length} tokens")
    header = ["model", "s", "median", "tok/s", "x AR", "median", "FLOPs", "peak", "MiB"]
    lines = [
        [
            row.model,
            f"{row.seconds:.3f}",
            f"{row.median:.3f}",
            f"{row.tokens_per_second:.0f}",
            f"{row.ratio_to_ar:.2f}",
            f"{row.median_ratio:.2f}",
            f"{row.flop_ratio:.2f}",
            f"{row.peak_share:.0%}",
            "-" if row.memory is None else f"{row.memory / 2**20:.0f}",
        ]
        for row in rows
    ]
    print(table(header, lines))
