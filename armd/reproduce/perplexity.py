"""Stage perplexity: every model after as many steps of the same batches (the paper's Tables 1 and
3), ours also after a third of them."""

from __future__ import annotations

from typing import Any

from ..train.run_folder import read_metrics, read_recipe
from .result_file import Findings
from .runs import Study, perplexity_runs
from .scores import heldout, load, scores, weights_of
from .train_runs import require


def measure(study: Study, findings: Findings) -> None:
    batches, scale = heldout(study), study.scale
    for trained in perplexity_runs(scale):
        folder = require(study, trained.name)
        facts = {
            **weights_of(folder),
            "heldout_rows": scale.heldout_rows,
            "draws": scale.draws,
        }

        def figures(folder: Any = folder) -> dict[str, Any]:
            model = load(folder)
            found = scores(model, read_recipe(folder), batches, draws=scale.draws)
            return {**found, **cost(model, scale.base.network.length), "curve": curve(folder)}

        findings.entry(trained.name, facts, figures)


def cost(model: Any, length: int) -> dict[str, Any]:
    """What a training token costs."""
    from ..bench.flops import train_flops

    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_flops_a_token": train_flops(model.config, length),
    }


def curve(folder: Any) -> list[list[float]]:
    """(step, held-out nats) while it trained: left to right, or the bound."""
    rows = [row for row in read_metrics(folder) if "heldout" in row]
    return [
        [row["step"], row["heldout"].get("left to right", row["heldout"].get("bound"))]
        for row in rows
    ]
