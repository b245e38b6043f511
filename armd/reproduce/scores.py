"""Held-out scores of any model of the study, in nats per token: exact for those that know an order,
a bound for the others."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from ..baselines.base import Baseline
from ..data.dataset import open_dataset
from ..model.likelihood import log_likelihood
from ..model.shapes import Bool, Float, Int, Tensor
from ..pretrained import load_model
from ..runtime.seeds import seeded
from ..train.curriculum import Stage, orders_of
from ..train.export import exported_step
from ..train.recipe import Recipe
from ..train.run_folder import EXPORT, data_facts, read_recipe
from ..train.validation import fixed_batches, kinds_for
from .runs import Study

Batches = list[tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]]
BATCH = 32


def heldout(study: Study) -> Batches:
    """The study's held-out windows, always the same."""
    split = open_dataset(study.data).split("heldout")
    length, rows = study.scale.base.network.length, study.scale.heldout_rows
    return fixed_batches(split, length=length, rows=rows, batch_size=BATCH)


def dataset_of(study: Study) -> dict[str, Any]:
    """What identifies the text that a stage's figures are of."""
    return {"data": data_facts(open_dataset(study.data))}


def weights_of(folder: Path) -> dict[str, Any]:
    """A checksum of a run's weights."""
    recipe = read_recipe(folder)
    with (folder / EXPORT / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "sha256": digest[:16],
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
def scores(model: Any, recipe: Recipe, batches: Batches, *, draws: int) -> dict[str, Any]:
    """Nats per token by kind of order; or of a baseline its own figure, with its standard error."""
    kinds = kinds_for(recipe)
    if isinstance(model, Baseline):
        exact = model.figure == "exact"
        return own_figure(model, batches, next(iter(kinds)), draws=1 if exact else draws)
    if "S=4" in kinds:
        kinds = {**kinds, "S=8": Stage("strided", 8)}
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


def own_figure(model: Any, batches: Batches, name: str, *, draws: int) -> dict[str, Any]:
    """The mean over `draws` draws of the bound, or whatever it is, for every window."""
    totals = []
    for draw in range(draws):
        generator = seeded("bound", draw)
        parts = [model.nll(tokens, scored, generator).double() for tokens, scored in batches]
        totals.append(torch.cat(parts).sum() / count(batches))
    values = torch.stack(totals)
    spread = float(values.std() / draws**0.5) if draws > 1 else 0.0
    return {name: float(values.mean()), "standard_error": spread}


def count(batches: Batches) -> int:
    return int(sum(int(scored.sum()) for _, scored in batches))


def mean(rows: Float[Tensor, "rows"], batches: Batches) -> float:
    return float(rows.sum() / count(batches))
