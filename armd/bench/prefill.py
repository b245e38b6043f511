"""`armd bench prefill`: how near to the machine's arithmetic is the pass over a prompt?"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..runtime.atomic_files import write_figures


@dataclass(frozen=True)
class Prefill:
    """The pass over a prompt, up to and with the first token drawn."""

    weights: str
    seconds: float
    """The best of the repetitions."""
    median: float
    gflops: float
    """Of the products, two operations a weight and token, over the best time."""
    share: float
    """Of what torch's product of large float32 matrices reaches in the same run."""


def bench_prefill(
    size: str = "small",
    prompt: int = 512,
    weights: tuple[str, ...] = ("fp32", "bf16", "q8", "q4"),
    query: str = "neighbor",
    peers: bool = False,
    model: str | None = None,
    repeats: int = 4,
    vocabulary: int = 50257,
    threads: int | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Time the pass over a prompt for each format of weights, interleaved, and compare its products
    with the machine's own product of large float32 matrices (integer products may exceed it).
    `--peers` and `--model` as in armd bench decode."""
    import torch

    from ..model.configuration_armd import ArmdConfig
    from ..model.modeling_armd import ArmdLM
    from ..native.packed import pack
    from ..runtime.memory import keep_freed_memory
    from ..runtime.threads import pin_threads
    from .armd_decode import first_step
    from .decode import load_for
    from .timing import check_positive, gemm_peak, interleave

    check_positive(prompt=prompt, vocabulary=vocabulary, threads=threads, repeats=repeats)
    if threads:
        pin_threads(threads)
    keep_freed_memory()
    config = ArmdConfig.named(size, vocab_size=vocabulary, max_length=prompt + 8, query=query)
    cpu = torch.device("cpu")
    ours = ArmdLM(config).eval() if model is None else load_for(model, prompt + 1, cpu)
    config = ours.config
    with torch.no_grad():
        sides = {kind: first_step(pack(ours, kind), prompt) for kind in weights}
        if peers:
            from .peers import llama_prefills

            sides |= llama_prefills(config, prompt, model)
        times = interleave(sides, repeats=repeats, device=cpu)
    peak = gemm_peak(cpu)
    layer = 2 * config.d_model * (config.n_heads + config.n_kv_heads) * config.d_head
    layer += 3 * config.d_model * config.d_ff
    operations = 2 * (prompt * config.n_layers * layer + config.vocab_size * config.d_model)
    rows = []
    for kind, time in times.items():
        rate = operations / time.best
        rows.append(Prefill(kind, time.best, time.median, rate / 1e9, rate / peak))
    print(f"torch.mm: {peak / 1e9:.0f} GFLOP/s in float32, {torch.get_num_threads()} threads")
    for row in rows:
        print(
            f"{row.weights:14} {prompt} tokens in {row.seconds * 1e3:.0f} ms (median "
            f"{row.median * 1e3:.0f}), {row.gflops:.0f} GFLOP/s, {row.share:.0%} of torch.mm"
        )
    if json_file:
        settings = {"size": size, "prompt": prompt, "query": query, "peak": peak}
        settings["model"] = model and Path(model).name
        settings |= {"repeats": repeats, "threads": torch.get_num_threads()}
        content = {"settings": settings, "rows": [asdict(row) for row in rows]}
        write_figures(json_file, content)
