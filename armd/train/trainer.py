"""One step of learning: the batch of a step, the loss, its gradient, AdamW. The run around it, with
its reports and checkpoints, is in loop.py."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel

from ..baselines import model_class
from ..data.dataset import Split
from ..data.sampler import batch
from ..errors import ArmdError
from ..model.order import Order
from ..model.shapes import Int, Tensor
from ..model.strict_model import load_weights
from ..pretrained import check_ours, is_quantized, model_folder
from ..runtime.atomic_folders import unexchanged
from ..runtime.processes import ProcessGroup
from ..runtime.seeds import seed_of
from .curriculum import Stage, orders_of, stage
from .distributed import gradients_shared, let_go, local, unwrapped, whole, wrap_model
from .recipe import Optimizer, Recipe
from .saved_checkpoint import Checkpoint

ROUND = 16
"""So many windows come in turn until each was taken as often as the recipe repeats it."""


@dataclass(frozen=True)
class MicroBatch:
    """What a device works on at a time."""

    tokens: Int[Tensor, "b n"]
    labels: Int[Tensor, "b n"]
    order: Order
    scored: int


@dataclass(frozen=True)
class Batch:
    """This process's share of a step."""

    step: int
    stage: Stage
    parts: list[MicroBatch]
    scored: int


@dataclass(frozen=True)
class StepMetrics:
    """What all processes together learnt in a step."""

    loss: float
    grad_norm: float
    stop: int
    """The largest signal number that any process was asked to stop with; 0 for none."""


def load_batch(recipe: Recipe, split: Split, group: ProcessGroup, step: int) -> Batch:
    """The texts and orders of `step`, which follow from the seed and the step alone."""
    mine = group.rows(recipe.optimizer.batch_size)
    now = stage(recipe.curriculum, seed=recipe.seed, step=step)
    count = -(-len(mine) // recipe.machine.micro_batch)
    parts = []
    for index in range(count):
        rows = mine[index * len(mine) // count : (index + 1) * len(mine) // count]
        parts.append(load_rows(recipe, split, now, step, rows))
    return Batch(step, now, parts, sum(part.scored for part in parts))


def window_step(step: int, repeats: int) -> int:
    """The step that first had this step's windows: they come again after `ROUND` others."""
    whole, place = divmod(step, ROUND * repeats)
    return whole * ROUND + place % ROUND


def load_rows(recipe: Recipe, split: Split, now: Stage, step: int, rows: range) -> MicroBatch:
    """Some rows of the global batch of `step`."""
    tokens, scored = batch(
        split,
        length=recipe.network.length,
        batch_size=recipe.optimizer.batch_size,
        seed=recipe.seed,
        step=window_step(step, recipe.adapt.repeats),
        rows=rows,
    )
    order = orders_of(now, seed=recipe.seed, step=step, rows=rows, scored=scored)
    labels = tokens.masked_fill(~scored, -100)
    return MicroBatch(tokens, labels, order, int(scored.sum()))


def learning_rate_at(optimizer: Optimizer, step: int, total: int) -> float:
    """The learning rate of a step: a linear climb, then constant or a cosine down to its end."""
    o = optimizer
    climb = min(1.0, (step + 1) / max(1, o.warmup))
    if o.schedule == "constant" or step < o.warmup:
        return o.learning_rate * climb
    share = (step - o.warmup) / max(1, total - o.warmup)
    low = o.final_rate
    return o.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * min(1.0, share))) / 2)


def build_optimizer(model: nn.Module, o: Optimizer, *, fused: bool) -> torch.optim.AdamW:
    """AdamW that decays matrices, and neither norms nor the BOS row."""
    weights = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in weights if p.dim() >= 2], "weight_decay": o.weight_decay},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (o.beta1, o.beta2)
    return torch.optim.AdamW(groups, lr=o.learning_rate, betas=betas, eps=o.eps, fused=fused)


MEANING = ("n_heads", "n_kv_heads", "rope_base", "rope_llama3", "norm_eps")
"""Fields of a config that change what weights of the same shapes compute."""


def _saved_weights(kind: Any, folder: Path, config: Any) -> dict[str, Tensor]:
    check_ours(folder)
    saved = kind.from_pretrained(folder)
    for name in MEANING:
        there, here = (getattr(one, name, None) for one in (saved.config, config))
        if there != here:
            raise ArmdError(
                f"the model in {folder} has {name} {there}, this recipe {here}; "
                "set the network's fields as in its config.json"
            )
    return saved.state_dict()


def build_model(recipe: Recipe, vocab_size: int, device: torch.device) -> PreTrainedModel:
    """The model before its first step, the same on every process."""
    torch.manual_seed(seed_of(recipe.seed, "weights"))
    kind = model_class(recipe.model)
    model = kind(recipe.config(vocab_size))
    if recipe.start and not recipe.start_step:
        if is_quantized(folder := model_folder(recipe.start)):
            raise ArmdError(f"{recipe.start} is quantized; start with the model it was made of")
        given = unexchanged(folder, lambda: _saved_weights(kind, folder, model.config))
        try:
            load_weights(model, given, recipe.start)
        except RuntimeError:
            raise ArmdError(
                f"the model in {recipe.start} has other sizes than this recipe; "
                "set the network's fields as in its config.json"
            ) from None
    model.gradient_checkpointing = recipe.machine.activation_checkpointing
    if recipe.machine.compile:
        for layer in model.layers:
            layer.compile()
    return model.to(device).train()


class Trainer:
    """A model that learns."""

    def __init__(self, recipe: Recipe, group: ProcessGroup, vocab_size: int) -> None:
        self.recipe, self.group = recipe, group
        self.model = wrap_model(self.build(vocab_size), group, recipe.machine.parallel)
        self.weights: dict[str, Tensor] = {
            name: w for name, w in unwrapped(self.model).named_parameters() if w.requires_grad
        }
        self.optimizer = self.build_optimizer()
        self.average: dict[str, Tensor] = {}
        if recipe.optimizer.ema:
            self.average = {name: w.detach().clone() for name, w in self.weights.items()}

    def build(self, vocab_size: int) -> nn.Module:
        return build_model(self.recipe, vocab_size, self.group.device)

    def build_optimizer(self) -> torch.optim.Optimizer:
        fused = self.recipe.machine.fused
        return build_optimizer(self.model, self.recipe.optimizer, fused=fused)

    def loss(self, part: MicroBatch, stage: Stage, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean over the part's scored tokens."""
        return self.model(tokens, order=part.order, labels=labels).loss

    def train_step(self, batch: Batch, *, stop: int = 0) -> StepMetrics:
        """One step. Raises, before any weight changes, if the loss or gradient is not finite."""
        nll = self._gradients(batch)
        world, bad = self.group.world, not math.isfinite(float(nll))
        # one exchange: the loss, whose loss is broken, and who was asked to stop
        facts = torch.zeros(1 + 2 * world, dtype=torch.float64, device=self.group.device)
        facts[0] = 0.0 if bad else nll / self.scored
        facts[1 + self.group.rank] = float(bad)
        facts[1 + world + self.group.rank] = float(stop)
        loss, *flags = self.group.sum(facts).tolist()
        if any(flags[:world]):
            self._raise_not_finite(batch.step, "loss", flags.index(1.0))
        norm = self._clip()
        if not math.isfinite(norm):
            self._raise_not_finite(batch.step, "gradient", None)
        now = learning_rate_at(self.recipe.optimizer, batch.step, self.recipe.curriculum.total)
        for group in self.optimizer.param_groups:
            group["lr"] = now * group.get("factor", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._update_ema(batch.step)
        return StepMetrics(loss, norm, int(max(flags[world:])))

    def _gradients(self, batch: Batch) -> Tensor:
        """Add up the gradient of the mean over all scored tokens of all processes; returns this
        process's summed loss."""
        group, machine = self.group, self.recipe.machine
        count = torch.tensor(float(batch.scored), dtype=torch.float64, device=group.device)
        self.scored = max(1.0, float(group.sum(count)))
        nll = torch.zeros((), dtype=torch.float64, device=group.device)
        half = machine.bf16 and group.device.type == "cuda"
        for index, part in enumerate(batch.parts):
            torch.manual_seed(seed_of(self.recipe.seed, batch.step, index, group.rank, "dropout"))
            tokens, labels = (
                t.to(group.device, non_blocking=True) for t in (part.tokens, part.labels)
            )
            with gradients_shared(self.model, index == len(batch.parts) - 1):
                with torch.autocast(group.device.type, torch.bfloat16, enabled=half):
                    loss = self.loss(part, batch.stage, tokens, labels)
                # processes average their gradients, hence the factor
                (loss * (part.scored * group.world / self.scored)).backward()
            nll += loss.detach().double() * part.scored
        return nll

    def _clip(self) -> float:
        weights = list(self.weights.values())
        norm = get_total_norm([w.grad for w in weights if w.grad is not None])
        norm = whole(norm)
        clip = self.recipe.optimizer.clip
        if clip:
            clip_grads_with_norm_(weights, clip, norm)
        return float(norm)

    def _raise_not_finite(self, step: int, what: str, rank: int | None) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        where, rows = "", ""
        if rank is not None:
            share = self.recipe.optimizer.batch_size // self.group.world
            where = f" on rank {rank}"
            rows = f" --rows {rank * share} {(rank + 1) * share}"
        raise ArmdError(
            f"the {what} of step {step}{where} is not finite; the run stopped before that step and "
            f"saved nothing after it; look at its batch: armd inspect {self.recipe.out} "
            f"--step {step}{rows}"
        )

    def _update_ema(self, step: int) -> None:
        """Move the averaged weights towards the new ones; faster at first, when those are poor."""
        decay = min(self.recipe.optimizer.ema, (1 + step) / (10 + step))
        for name, average in self.average.items():
            local(average).lerp_(local(self.weights[name].detach()), 1 - decay)

    @contextlib.contextmanager
    def ema_weights(self) -> Iterator[None]:
        """Inside, the model has its averaged weights, if it keeps any."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        let_go(self.model)
        for name, average in self.average.items():
            weight, other = local(self.weights[name].detach()), local(average)
            kept = weight.clone()
            weight.copy_(other)
            other.copy_(kept)

    def state(self) -> dict[str, Tensor]:
        """All tensors that a checkpoint must hold."""
        tensors = {f"model/{name}": w.detach() for name, w in self.weights.items()}
        tensors |= {f"ema/{name}": w for name, w in self.average.items()}
        for name, weight in self.weights.items():
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"{key}/{name}"] = self.optimizer.state[weight][key]
        return tensors

    def resume(self, checkpoint: Checkpoint) -> None:
        """Take everything from a checkpoint."""
        fused = self.recipe.machine.fused
        for weight in self.weights.values():
            count = torch.tensor(float(checkpoint.step), device=weight.device if fused else "cpu")
            self.optimizer.state[weight] = {
                "step": count,
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        with torch.no_grad():
            checkpoint.load(self.state(), self.group)
