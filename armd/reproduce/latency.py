"""Stage latency: training time against L2s (Table 4), decoding time against S, all interleaved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..bench.timing import Times, interleave
from ..generation.api import generate
from ..model.modeling_armd import ArmdLM
from ..model.order import Order, left_to_right, shuffled, strided
from .result_file import Findings
from .runs import Study
from .scale import Scale

STREAMS = (1, 2, 4, 8)
REPEATS = 25
VOCABULARY = 2048


def measure(study: Study, findings: Findings) -> None:
    """On a quiet machine: nothing else of the study runs meanwhile."""
    facts = {"network": str(study.scale.base.network), "threads": torch.get_num_threads()}
    facts["queries"] = "prefix, neighbor"
    findings.entry(
        "training", {**facts, "rows": batch_rows(study.scale)}, lambda: shown(training(study.scale))
    )
    findings.entry("decoding", facts, lambda: shown(decoding(study.scale)))


def shown(times: dict[str, Times]) -> dict[str, Any]:
    return {
        name: {"best": t.best, "median": t.median, "seconds": list(t.seconds)}
        for name, t in times.items()
    }


def batch_rows(scale: Scale) -> int:
    return min(scale.base.optimizer.batch_size, scale.base.machine.micro_batch)


def training(scale: Scale) -> dict[str, Times]:
    """Forward and backward of a batch, for AR and every L2s left to right, and for the neighbor
    query, whose cost depends on it, in three orders."""
    network = scale.base.network
    tokens = torch.randint(VOCABULARY, (batch_rows(scale), network.length))
    order = left_to_right(network.length)
    sides: dict[str, Callable[[], object]] = {}
    shapes = {"AR": replace(network, query="shift")}
    for two in range(1, network.n_layers + 1):
        shapes[f"L2s={two}"] = replace(network, n_two_stream=two)
    models = {name: ArmdLM(shape.config(VOCABULARY)).train() for name, shape in shapes.items()}
    trained = [(name, model, order) for name, model in models.items()]
    near = ArmdLM(replace(network, query="neighbor").config(VOCABULARY)).train()
    rho = scale.base.curriculum.rho
    draw = torch.Generator().manual_seed(0)
    trained += [
        ("neighbor", near, order),
        ("neighbor S=4", near, strided(network.length, 4)),
        (f"neighbor rho={rho}", near, shuffled(network.length, rho, generator=draw)),
    ]
    for name, model, order in trained:

        def step(model: ArmdLM = model, order: Order = order) -> None:
            model(tokens, order=order, labels=tokens).loss.backward()
            model.zero_grad(set_to_none=True)

        sides[name] = step
    return interleave(sides, repeats=REPEATS, device=torch.device("cpu"))


def decoding(scale: Scale) -> dict[str, Times]:
    """One text of the full length, with packed weights, for AR and S streams."""
    from ..native.packed import pack

    network = scale.base.network
    sides: dict[str, Callable[[], object]] = {}
    autoregressive = pack(ArmdLM(replace(network, query="shift").config(VOCABULARY)).eval())
    sides["AR"] = lambda: generate(autoregressive, length=network.length)
    model = pack(ArmdLM(network.config(VOCABULARY)).eval())
    for s in STREAMS:
        sides[f"S={s}"] = lambda s=s: generate(model, length=network.length, streams=s)
    near = pack(ArmdLM(replace(network, query="neighbor").config(VOCABULARY)).eval())
    for s in STREAMS:
        sides[f"neighbor S={s}"] = lambda s=s: generate(near, length=network.length, streams=s)
    return interleave(sides, repeats=REPEATS, device=torch.device("cpu"))
