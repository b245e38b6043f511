"""Held-out loss of a model, in the orders that matter: left to right, random, strided; or, of one
that knows no orders, its bound, or what else its figure is."""

from collections.abc import Iterator

import torch
from torch import nn

from ..baselines import figure_of, knows_orders
from ..data.dataset import Split
from ..data.sampler import heldout_batches
from ..model.eval_mode import without_dropout
from ..model.order import Order
from ..model.shapes import Bool, Int, Tensor
from ..runtime.processes import ProcessGroup
from ..runtime.seeds import seed_of
from .curriculum import Stage, orders_of
from .recipe import Recipe

KINDS = {
    "left to right": Stage("shuffled", 0),
    "random": Stage("random"),
    "S=2": Stage("strided", 2),
    "S=4": Stage("strided", 4),
}


def kinds_for(recipe: Recipe) -> dict[str, Stage]:
    """What the model can be asked; the first decides which checkpoint is best."""
    if not knows_orders(recipe.model):
        figure = figure_of(recipe.model)
        return {"left to right" if figure == "exact" else figure: KINDS["left to right"]}
    if recipe.model == "sigma-gpt":
        return {name: KINDS[name] for name in ("left to right", "random")}
    if recipe.network.query == "shift":
        return {"left to right": KINDS["left to right"]}
    return KINDS


def fixed_batches(
    split: Split, *, length: int, rows: int, batch_size: int
) -> list[tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]]:
    """The first `rows` held-out windows, in batches."""
    batches, left = [], rows
    for tokens, scored in heldout_batches(split, length=length, batch_size=batch_size):
        if left <= 0:
            break
        batches.append((tokens[:left], scored[:left]))
        left -= len(tokens)
    return batches


@torch.no_grad()
def heldout_losses(
    model: nn.Module,
    batches: list[tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]],
    kinds: dict[str, Stage],
    *,
    group: ProcessGroup,
    seed: int,
) -> dict[str, float]:
    """Nats per scored token for each kind of order; the batches are shared out over processes. A
    bound is seen in draws that are the same each time."""
    losses, devices = {}, [group.device] if group.device.type == "cuda" else []
    for name, kind in kinds.items():
        total = torch.zeros(2, dtype=torch.float64, device=group.device)
        for first, tokens, scored, order in _shared(batches, kind, group, seed):
            labels = tokens.masked_fill(~scored, -100).to(group.device)
            with without_dropout(model), torch.random.fork_rng(devices):
                torch.manual_seed(seed_of(seed, "heldout", first))
                loss = model(tokens.to(group.device), order=order, labels=labels).loss.double()
            total += torch.stack([loss, torch.ones_like(loss)]) * scored.sum()
        nll, count = group.sum(total).tolist()
        losses[name] = nll / max(count, 1.0)
    return losses


def _shared(
    batches: list[tuple[Tensor, Tensor]], kind: Stage, group: ProcessGroup, seed: int
) -> Iterator[tuple[int, Tensor, Tensor, Order]]:
    """This process's batches, each with the number of its first row. A process that has none left
    repeats one, unscored, because sharded weights are gathered by all processes together."""
    starts = [0]
    for tokens, _ in batches:
        starts.append(starts[-1] + len(tokens))
    for first in range(0, len(batches), group.world):
        index = first + group.rank
        spare = index >= len(batches)
        tokens, scored = batches[0 if spare else index]
        rows = range(starts[0 if spare else index], starts[0 if spare else index] + len(tokens))
        order = orders_of(kind, seed=seed, step=-1, rows=rows, scored=scored)
        yield rows.start, tokens, torch.zeros_like(scored) if spare else scored, order
