"""Stage perplexity: every model after as many steps of the same batches (the paper's Tables 1 and
3), ours also after a third of them."""

from __future__ import annotations

from typing import Any

import torch

from ..model import order as orders
from ..model.neighbor import needs_extra_row
from ..train.recipe import Recipe
from ..train.run_folder import read_metrics, read_recipe
from .result_file import Findings
from .runs import Study, perplexity_runs
from .scores import dataset_of, heldout, load, scores, weights_of
from .train_runs import require


def measure(study: Study, findings: Findings) -> None:
    batches, scale, data = heldout(study), study.scale, dataset_of(study)
    for trained in study.chosen(perplexity_runs(scale)):
        folder = require(study, trained.name)
        facts = {
            **weights_of(folder),
            **data,
            "heldout_rows": scale.heldout_rows,
            "draws": scale.draws,
        }

        def figures(folder: Any = folder) -> dict[str, Any]:
            model, recipe = load(folder), read_recipe(folder)
            found = scores(model, recipe, batches, draws=scale.draws)
            return {**found, **cost(model, recipe), "curve": curve(folder)}

        findings.entry(trained.name, facts, figures)


def cost(model: Any, recipe: Recipe) -> dict[str, Any]:
    """What a training token costs, in orders of the curriculum's last stage."""
    from ..bench.flops import train_flops

    length, extra = recipe.network.length, 0.0
    if recipe.network.query == "neighbor":
        extra = mean_extra_rows(length, recipe.curriculum.rho)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_flops_a_token": train_flops(model.config, length, extra_rows=extra),
    }


def mean_extra_rows(length: int, rho: int) -> float:
    """The query rows of a shuffled order that are no context rows, over 200 draws."""
    generator = torch.Generator().manual_seed(0)
    drawn = [orders.shuffled(length, rho, generator=generator) for _ in range(200)]
    return float(needs_extra_row(orders.stack(drawn)).sum(1).double().mean())


def curve(folder: Any) -> list[list[float]]:
    """(step, held-out nats) while it trained: left to right, or the bound."""
    rows = [row for row in read_metrics(folder) if "heldout" in row]
    return [
        [row["step"], row["heldout"].get("left to right", row["heldout"].get("bound"))]
        for row in rows
    ]
