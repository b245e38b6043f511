"""`armd inspect RUN --step N`: the batch of a step again, from the seed alone, to see what was
in it."""

from pathlib import Path
from typing import Annotated

import tyro

from ..errors import ArmdError


def inspect_batch(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    step: int,
    rows: tuple[int, int] | None = None,
    data: str = "",
    scores: bool = True,
    width: int = 100,
) -> None:
    """Print each text of a step's batch, its order, and its loss under the run's exported model.

    Args:
        run: The run's folder.
        step: The step, as the error named it (from 0).
        rows: First row and the one after the last; all if not given.
        data: The dataset, if it was moved since.
        scores: Score each row with the exported model.
        width: Characters of text to show.
    """
    from ..data.dataset import open_dataset
    from ..runtime.memory import check_memory
    from .curriculum import stage
    from .recipe_limits import check_between
    from .run_folder import data_facts, read_data_facts, read_recipe
    from .trainer import load_rows

    check_between("--width", width, 1, 10**6)
    recipe = read_recipe(run)
    recipe.check()
    dataset, size = open_dataset(data or recipe.data), recipe.optimizer.batch_size
    if (there := read_data_facts(run)) is not None and there != data_facts(dataset):
        raise ArmdError(
            f"{dataset.folder} is not the dataset that {run} was trained on; see --data"
        )
    first, end = rows or (0, size)
    check_between("--step", step, 0, max(recipe.curriculum.total - 1, 0))
    if not 0 <= first < end <= size:
        raise ArmdError(f"--rows must lie between 0 and {size}")
    mine = range(first, end)
    check_memory(16 * len(mine) * recipe.network.length, "the batch", "give fewer --rows")
    now = stage(recipe.curriculum, seed=recipe.seed, step=step)
    loaded = load_rows(recipe, dataset.split("train"), now, step, mine)
    tokens, scored, order = loaded.tokens, loaded.labels >= 0, loaded.order.rows(len(mine))
    losses = row_losses(run, tokens, scored, order) if scores else None
    print(f"step {step}: {now}, {int(scored.sum())} scored tokens in {len(mine)} rows")
    tokenizer = dataset.tokenizer()
    for index, row in enumerate(mine):
        text = str(tokenizer.decode(tokens[index].tolist()))
        loss = f"  loss {losses[index]:.3f}" if losses else ""
        moved = int((order.position[min(index, len(order.position) - 1)].diff() != 1).sum())
        print(f"row {row}{loss}  {moved} jumps in its order  {text[:width]!r}")


def row_losses(run: Path, tokens, scored, order) -> list[float]:
    """Nats per scored token of each row."""
    import torch

    from ..baselines.base import Baseline
    from ..model.likelihood import log_likelihood
    from ..pretrained import load_model

    model = load_model(run)
    with torch.no_grad():
        if isinstance(model, Baseline):
            draw = torch.Generator().manual_seed(0)
            return (model.nll(tokens, scored, draw) / scored.sum(1).clamp(min=1)).tolist()
        logp = log_likelihood(model, tokens, order)
    counted = scored.gather(1, order.position.expand(tokens.shape))
    return (-(logp * counted).sum(1) / counted.sum(1).clamp(min=1)).tolist()
