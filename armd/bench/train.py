"""`armd bench train`: what does a training step cost, against AR and against GPT-2?"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro


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
    """Bytes on top of weights and gradients."""


def bench_train(
    size: str = "small",
    two_stream: tuple[int, ...] = (3, 6, 12),
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
    """Time forward and backward of ARMD at several L2s, of AR (the same layers, one stream) and of
    transformers' GPT2LMHeadModel, interleaved in one process."""
    import torch

    from .timing import gemm_peak

    if threads:
        torch.set_num_threads(threads)
    if loop is not None:
        from .train_loop import report_loop

        figures = report_loop(str(loop))
        if json_file:
            json_file.write_text(json.dumps(figures, indent=1))
        return
    where = torch.device(device)
    peak = gemm_peak(where)
    print(f"GEMM peak {peak / 1e9:.0f} GFLOP/s, {torch.get_num_threads()} threads, batch {batch}")
    rows = []
    for length in map(int, lengths.split(",")):
        models = build(size, two_stream, length, vocabulary, gpt2=gpt2)
        for name, model in models.items():
            models[name] = torch.compile(model.to(where)) if compile else model.to(where)
        rows += measure(models, length, batch=batch, repeats=repeats, peak=peak, device=where)
        show([row for row in rows if row.length == length])
    if json_file:
        settings = {"size": size, "batch": batch, "repeats": repeats, "device": device}
        settings |= {"threads": torch.get_num_threads(), "gemm_peak": peak, "compile": compile}
        content = {"settings": settings, "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(content, indent=1))


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
    if gpt2:
        same = {"n_layer": config.n_layers, "n_embd": config.d_model, "n_head": config.n_heads}
        zero = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        models["GPT2LMHeadModel"] = GPT2LMHeadModel(
            GPT2Config(vocab_size=vocabulary, n_positions=length, **same, **zero)
        )
    return models


def measure(
    models: dict[str, Any], length: int, *, batch: int, repeats: int, peak: float, device: Any
) -> list[Row]:
    import torch

    from ..runtime.memory import keep_freed_memory
    from .flops import forward_flops
    from .timing import interleave, peak_memory

    vocabulary = models["AR"].config.vocab_size
    tokens = torch.randint(vocabulary, (batch, length), device=device)

    def step(model: Any) -> Callable[[], object]:
        def run() -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(tokens, labels=tokens).loss
            loss.backward()

        return run

    steps = {name: step(model) for name, model in models.items()}
    memory = {name: peak_memory(run, device) for name, run in steps.items()}
    keep_freed_memory()
    times = interleave(steps, repeats=repeats, device=device, warm=True)
    rows = []
    for name, model in models.items():
        ar = 3 * forward_flops(models["AR"].config, length, batch=batch)
        gpt2 = name.startswith("GPT2")
        flops = ar if gpt2 else 3 * forward_flops(model.config, length, batch=batch)
        best = times[name].best
        rows.append(
            Row(
                model=name,
                length=length,
                seconds=best,
                median=times[name].median,
                tokens_per_second=batch * length / best,
                ratio_to_ar=best / times["AR"].best,
                median_ratio=times[name].median / times["AR"].median,
                flop_ratio=flops / ar,
                peak_share=flops / best / peak,
                memory=memory[name],
            )
        )
    return rows


def show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"forward and backward, {rows[0].length} tokens", box=None)
    for column in ("model", "s", "median", "tok/s", "x AR", "median", "FLOPs", "peak", "MiB"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        memory = "-" if row.memory is None else f"{row.memory / 2**20:.0f}"
        table.add_row(
            row.model,
            f"{row.seconds:.3f}",
            f"{row.median:.3f}",
            f"{row.tokens_per_second:.0f}",
            f"{row.ratio_to_ar:.2f}",
            f"{row.median_ratio:.2f}",
            f"{row.flop_ratio:.2f}",
            f"{row.peak_share:.0%}",
            memory,
        )
    Console().print(table)
