"""Held-out scores of any model of the study, in nats per token: exact for those that know an order,
a bound for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..curriculum import Stage, orders_of
from ..data.dataset import Dataset
from ..likelihood import log_likelihood
from ..pretrained import load_model
from ..seeds import seeded
from ..shapes import Bool, Float, Int, Tensor
from ..validate import fixed_batches
from .runs import Study

Batches = list[tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]]
KINDS = {
    "left to right": Stage("shuffled", 0),
    "S=2": Stage("strided", 2),
    "S=4": Stage("strided", 4),
    "S=8": Stage("strided", 8),
    "random": Stage("random"),
}
BATCH = 32


def heldout(study: Study) -> Batches:
    """The study's held-out windows, always the same."""
    split = Dataset(study.data).split("heldout")
    length, rows = study.scale.base.network.length, study.scale.heldout_rows
    return fixed_batches(split, length=length, rows=rows, batch_size=BATCH)


def weights_of(folder: Path) -> dict[str, Any]:
    """What tells a run's weights from those of another run."""
    from ..export import EXPORT, exported_step
    from ..run import read_recipe

    recipe = read_recipe(folder)
    return {
        "step": exported_step(folder / EXPORT),
        "seed": recipe.seed,
        "model": recipe.model,
        "steps": recipe.curriculum.total,
        "batch": recipe.optimizer.batch_size,
        "length": recipe.network.length,
    }


def load(folder: Path) -> Any:
    return load_model(str(folder)).eval()


@torch.no_grad()
def scores(model: Any, batches: Batches, *, draws: int) -> dict[str, Any]:
    """Nats per token by kind of order, or {"bound": ...} with its standard error."""
    if hasattr(model, "nll"):
        return bound(model, batches, draws=draws)
    forward = getattr(model, "any_order", model.config.query != "shift")
    kinds = KINDS if forward else {"left to right": KINDS["left to right"]}
    if getattr(model, "singles_only", False):
        kinds = {name: KINDS[name] for name in ("left to right", "random")}
    return {name: mean(per_row(model, batches, kind), batches) for name, kind in kinds.items()}


def per_row(model: Any, batches: Batches, kind: Stage) -> Float[Tensor, "rows"]:
    """-log p of each window's scored tokens, in the order of `kind`."""
    found, first = [], 0
    for tokens, scored in batches:
        rows = range(first, first + len(tokens))
        order = orders_of(kind, seed=0, step=-1, rows=rows, scored=scored)
        logp = log_likelihood(model, tokens, order).double()
        seen = scored.gather(1, order.rows(len(tokens)).position.expand(tokens.shape))
        found.append(-(logp * seen).sum(1))
        first += len(tokens)
    return torch.cat(found)


def bound(model: Any, batches: Batches, *, draws: int) -> dict[str, Any]:
    """The mean over `draws` draws of the bound for every window."""
    totals = []
    for draw in range(draws):
        generator = seeded("bound", draw)
        parts = [model.nll(tokens, scored, generator).double() for tokens, scored in batches]
        totals.append(torch.cat(parts).sum() / count(batches))
    values = torch.stack(totals)
    spread = float(values.std() / draws**0.5) if draws > 1 else 0.0
    return {"bound": float(values.mean()), "standard_error": spread}


def count(batches: Batches) -> int:
    return int(sum(int(scored.sum()) for _, scored in batches))


def mean(rows: Float[Tensor, "rows"], batches: Batches) -> float:
    return float(rows.sum() / count(batches))
