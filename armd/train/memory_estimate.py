"""Does a run fit into memory? Asked before anything is allocated, and estimated from below: what is
refused could not have been trained."""

import torch

from ..baselines import knows_orders
from ..runtime.memory import check_memory
from ..runtime.processes import count_processes
from .recipe import Recipe

KEPT = 16
"""Rows of the model's width that a layer keeps of each of its rows for the backward pass, at least:
the inputs of two norms and of its products, queries, keys, values, and both halves of SwiGLU."""


def check_fits(recipe: Recipe, vocab_size: int) -> None:
    """Raise if the run cannot fit into memory. Of a GPU's memory nothing is known here."""
    if recipe.machine.device in ("auto", "cpu") and not torch.cuda.is_available():
        needed = memory_of(recipe, vocab_size, count_processes())
        fix = "lower --length, --micro-batch, --batch-size or the network's sizes"
        check_memory(needed, "this run", fix)


def memory_of(recipe: Recipe, vocab_size: int, processes: int = 1) -> int:
    """Bytes that one of the processes takes at its peak, at least."""
    net, machine = recipe.network, recipe.machine
    rows = -(-recipe.optimizer.batch_size // processes)
    at_a_time = -(-rows // -(-rows // machine.micro_batch))
    # a model of somebody else may have fewer keys and a narrower feed-forward
    adapted = bool(recipe.adapt.base_model)
    layer = (8 if adapted else 12) * net.d_model**2
    weights = 4 * (vocab_size * net.d_model + net.n_layers * layer)
    if net.query == "prefix" and recipe.model == "armd" and not adapted:
        weights += 4 * net.d_pe * (net.d_model + net.d_pe)  # of the position code
    if machine.parallel == "fsdp2":
        weights //= processes
    learning = 0 if adapted and not recipe.adapt.full else weights
    lasting = weights + (2 + bool(recipe.optimizer.ema)) * learning  # AdamW's moments, the average
    step = kept_rows(recipe, at_a_time) + mask_of_streams(recipe)
    batch = 16 * rows * net.length  # tokens and labels
    # gradients come as activations go, and held-out text is read when both are gone
    return lasting + batch + max(step, learning, pairs_of_heldout(recipe))


def kept_rows(recipe: Recipe, texts: int) -> int:
    """Bytes that the layers keep of so many texts until the backward pass. Of rows that only an
    adapter learns from, no more is sure than one for each layer."""
    net = recipe.network
    few = recipe.adapt.base_model or recipe.machine.activation_checkpointing
    return 4 * (1 if few else KEPT) * net.n_layers * texts * net.length * net.d_model


def mask_of_streams(recipe: Recipe) -> int:
    """Bytes, where streams are learnt: half of all pairs of a row and a key, once for all texts."""
    strided = recipe.curriculum.sbp_steps and max(recipe.curriculum.streams) > 1
    return 2 * recipe.network.length**2 if strided else 0


def pairs_of_heldout(recipe: Recipe) -> int:
    """Bytes of that mask where held-out text is read in streams. With neighbors it is read in a
    random order, too: there each query row weighs all tokens."""
    net = recipe.network
    orders = knows_orders(recipe.model) and recipe.model != "sigma-gpt" and net.query != "shift"
    if not recipe.report.validate_every or not orders:
        return 0
    random = net.query == "neighbor" and not recipe.adapt.base_model
    return (8 if random else 2) * net.length**2
