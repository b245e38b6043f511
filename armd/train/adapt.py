"""Adapting a converted model to other orders: adapters on all linear layers and the few new weights
(or all weights) learn, with the run folder, checkpoints and loop of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from ..convert.adapter import Merging, write_adapter
from ..convert.weight_file import WEIGHTS, check_disk, write_one_by_one
from ..errors import ArmdError
from ..model.adapted_linear import out_of_order
from ..model.attention_inputs import block_limits, context_position
from ..model.configuration_armd import ArmdConfig
from ..model.neighbor_rows import InOrderRows, count_in_order
from ..model.order import Order, left_to_right
from ..model.shapes import Tensor
from ..pretrained import in_memory, load_model
from ..runtime.atomic_files import copy_plain_files, read_plain_files, write_sums
from ..runtime.atomic_folders import remove_at_once, replaced_folder, unexchanged
from ..runtime.lock import Check
from ..runtime.seeds import seed_of
from ..runtime.weight_files import OF_WEIGHTS, weight_files
from ..saved_folder import finish_folder
from .adapt_base import base_folder, check_kept, keep_base
from .adapters import with_adapters, with_exact_adapters, without_adapters
from .curriculum import Stage
from .distilled_loss import distance_to_the_right, distilled_loss, share_of_text
from .distributed import unwrapped
from .export import card_facts, export
from .loop import Run, train
from .recipe import Recipe
from .run_folder import ADAPTER, BASE, EXPORT, begin_run
from .saved_checkpoint import Checkpoint
from .stop import Stop
from .trainer import ROUND, MicroBatch, Trainer
from .validation import KINDS

FASTER = {"right_bias": 20.0, "unknown": 3.0, "gate": 20.0}
"""Rates above the adapter's: these are few, and must move by whole units."""
MANY = 32
"""Rows that are worth being read by themselves."""
JOINED = 8
"""A text whose end was moved before its start is a new one for the source after so many tokens."""


def adapt(recipe: Recipe) -> Path:
    """Adapt, or go on adapting, and return the run's folder."""
    return train(recipe, AdaptRun)


class AdaptTrainer(Trainer):
    """A pretrained model that learns other orders and keeps its own."""

    def build(self, vocab_size: int) -> nn.Module:
        a, self.kept = self.recipe.adapt, dict[bytes, Tensor]()
        base = base_folder(self.recipe)
        model = in_memory(load_model(base))
        if not model.any_order:
            raise ArmdError(f"{a.base_model} knows left to right alone; convert it first")
        torch.manual_seed(seed_of(self.recipe.seed, "adapter"))
        if a.full:
            self.source: Any = in_memory(load_model(base)) if a.distill else None
        else:
            add = with_exact_adapters if a.exact else with_adapters
            add(model, a.rank, a.alpha, Path(a.start) if a.start else None)
            self.source = model
        model.gradient_checkpointing = self.recipe.machine.activation_checkpointing
        return model.to(self.group.device).train()

    def build_optimizer(self) -> torch.optim.Optimizer:
        o, groups = self.recipe.optimizer, {}
        for name, weight in self.weights.items():
            factors = {**FASTER, ".lora_b": self.recipe.adapt.alpha / self.recipe.adapt.rank}
            factor = next((f for end, f in factors.items() if name.endswith(end)), 1.0)
            groups.setdefault(factor, []).append(weight)
        listed = [{"params": ws, "factor": factor} for factor, ws in groups.items()]
        return torch.optim.AdamW(
            listed,
            lr=o.learning_rate,
            betas=(o.beta1, o.beta2),
            eps=o.eps,
            weight_decay=0.0,
            fused=self.recipe.machine.fused,
        )

    def loss(self, part: MicroBatch, stage: Stage, tokens: Tensor, labels: Tensor) -> Tensor:
        """KL to the source for tokens that it knows as much about, the text's own for others."""
        model, order = unwrapped(self.model), part.order.rows(len(tokens)).to(tokens.device)
        position = order.position.expand(tokens.shape)
        read = self._rows_in_order(tokens, order)
        target, rows = labels.gather(1, position), model.hidden(tokens, part.order, read=read)
        right = distance_to_the_right(order).expand(tokens.shape)
        weight = (target != -100).to(rows.dtype)
        if self.recipe.adapt.exact:  # what rows in order predict is the source's
            visible = block_limits(order)[0]
            out = out_of_order(order.position, context_position(order), visible)
            weight = weight * out[..., 0].expand(tokens.shape)
        if stage.kind == "infill":  # only what is filled in, and by the text
            weight, text = weight * (right > 0), torch.ones_like(weight)
        else:
            a = self.recipe.adapt
            text = share_of_text(right, a.distill, a.right_text).to(rows.dtype)
        source = None
        if bool((text < 1).any()):
            source = self._source_rows(tokens, position, self._cut(stage, labels), read)
        total = weight.sum().clamp(min=1)
        flat = (t.flatten() for t in (target.clamp(min=0), weight / total, text))
        return distilled_loss(rows.flatten(0, 1), model.head_matrix(), source, *flat)

    def _rows_in_order(self, tokens: Tensor, order: Order) -> InOrderRows | None:
        """The first rows, such as those of a prompt, where they are many: nothing that learns has
        touched them, so they need no gradient, and the source has the same."""
        model = unwrapped(self.model)
        if not self.recipe.adapt.exact or model.config.dropout:
            return None
        count = count_in_order(order)
        return model.read_in_order(tokens, count) if MANY <= count < len(order) else None

    def _clip(self) -> float:
        """Weights that a step did not use, such as the bias left to right, stay where they are."""
        for weight in self.weights.values():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        return super()._clip()

    def _cut(self, stage: Stage, labels: Tensor) -> int:
        """Where one of the later streams starts, drawn; 0 for none."""
        n, streams = labels.shape[1], stage.amount if stage.kind == "strided" else 1
        if not self.recipe.adapt.ahead or streams < 2 or bool((labels == -100).any()):
            return 0
        run, prompt = int(torch.randint(1, streams, ())), int(stage.prompt * n)
        each, rest = divmod(n - prompt, streams)
        return prompt + run * each + min(run, rest)

    @torch.no_grad()
    def _source_rows(
        self, tokens: Tensor, position: Tensor, cut: int, read: InOrderRows | None = None
    ) -> Tensor | None:
        """The source's final rows. For tokens before the cut it reads what follows the cut first,
        then the text up to them: it knows the right side as we do, and had nothing to learn."""
        if self.source is None:
            return None
        n = tokens.shape[1]
        with without_adapters(self.source):
            rows = self._read(tokens, read)
            if cut > JOINED:
                moved = self.source.hidden(tokens.roll(-cut, 1), left_to_right(n))
                rows = torch.cat([rows[:, :JOINED], moved[:, n - cut + JOINED :], rows[:, cut:]], 1)
        return rows.gather(1, position[..., None].expand(rows.shape)).flatten(0, 1)

    def _read(self, tokens: Tensor, read: InOrderRows | None = None) -> Tensor:
        """The source's final rows, left to right; kept if these windows come again. Those that are
        kept do not depend on what this step has read: a run that goes on must have the same."""
        order = left_to_right(tokens.shape[1])
        if self.recipe.adapt.repeats == 1:
            return self.source.hidden(tokens, order, read=read)
        if (found := self.kept.get(windows := tokens.cpu().numpy().tobytes())) is None:
            found = self.kept[windows] = self.source.hidden(tokens, order)
            if len(self.kept) > ROUND * self.recipe.optimizer.batch_size:
                del self.kept[next(iter(self.kept))]
        return found


class AdaptRun(Run):
    """The run of an adaptation: its checkpoints hold what learns, its export the merged model."""

    def make_trainer(self) -> Trainer:
        if self.group.world > 1:
            raise ArmdError("armd adapt works in one process; start it without torchrun")
        self.check()
        base = base_folder(self.recipe)
        unexchanged(base, lambda: self._check_base(base))
        begin_run(self.folder, self.recipe, self.dataset)  # by which a base that is kept is known
        keep_base(self.recipe, self.check)
        return AdaptTrainer(self.recipe, self.group, self.dataset.vocab_size)

    def _check_base(self, base: Path) -> None:
        """Raise for what can be seen to fail before the run is begun."""
        self.dataset.check_vocabulary(ArmdConfig.from_pretrained(base).vocab_size)
        if not self.recipe.adapt.full:
            check_disk(self.folder, sum(file.stat().st_size for file in weight_files(base)))

    def go(self, stop: Stop) -> int:
        number = super().go(stop)
        if not number:  # all of the base is in the export
            self.check()
            remove_at_once(self.folder / BASE, self.folder / EXPORT)
        return number

    def kinds(self) -> dict[str, Stage]:
        asked = [s for s in dict.fromkeys(self.recipe.curriculum.streams) if s > 1]
        streams = {f"S={s}": Stage("strided", s) for s in sorted(asked)}
        return {"left to right": KINDS["left to right"], **streams}

    def _export(self, checkpoint: Checkpoint) -> None:
        self.check()
        a, base = self.recipe.adapt, base_folder(self.recipe)
        if a.full:
            config, facts = ArmdConfig.from_pretrained(base), self.card(checkpoint)
            out = self.folder / EXPORT
            files = read_plain_files(base, but=OF_WEIGHTS)
            return export(checkpoint, config, files, out, check=self.check, **facts)
        save(self.recipe, checkpoint.weights("model/"), self.folder / ADAPTER, self.check)
        if checkpoint.step == self.total:
            out, facts = self.folder / EXPORT, self.card(checkpoint)
            check_kept(self.recipe)
            step = checkpoint.step
            merge(base, self.folder / ADAPTER, out, step=step, check=self.check, **facts)

    def card(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """What the model's card says of it, not of its base."""
        facts = card_facts(self.recipe, self.dataset, checkpoint)
        base = Path(self.recipe.adapt.base_model).name
        return {**facts, "about": {"adapted from": base, **facts["about"]}}

    def finish_without_steps(self) -> None:
        """A run of no steps: the adapter as it starts, which changes nothing."""
        adapter, out = self.folder / ADAPTER, self.folder / EXPORT
        save(self.recipe, self.trainer.weights, adapter, self.check)
        merge(base_folder(self.recipe), adapter, out, step=0, check=self.check)


def save(recipe: Recipe, weights: Any, folder: Path, check: Check) -> None:
    """Write the adapter folder, replacing what is there, unless `check` raises."""
    a = recipe.adapt
    name = Path(a.base_model).name
    half = torch.bfloat16 if a.half else torch.float32
    with replaced_folder(folder, check) as aside:
        offset = ArmdConfig.from_pretrained(base_folder(recipe)).right_offset
        facts = {"base": a.base, "base_name": name, "right_offset": offset, "exact": a.exact}
        write_adapter(aside, weights, rank=a.rank, alpha=a.alpha, dtype=half, **facts)


def merge(base: Path, adapter: Path, out: Path, *, step: int, check: Check, **card: Any) -> None:
    """The base with the adapter added, as a folder of its own, one tensor at a time, unless `check`
    raises."""
    merging, place, shapes = Merging(adapter), {}, {}
    dtype = None
    for file in weight_files(base):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no dict
                place[name], shapes[name] = file, tuple(opened.get_slice(name).get_shape())
                dtype = dtype or opened.get_tensor(name).dtype

    merging.check_shapes(shapes)
    shapes |= {name: tuple(tensor.shape) for name, tensor in merging.added.items()}

    def make(name: str) -> Tensor:
        if name in merging.added:
            return merging.added[name].to(dtype)
        with safe_open(place[name], "pt") as opened:
            return merging(name, opened.get_tensor(name))

    assert dtype is not None
    with replaced_folder(out, check) as aside:
        copy_plain_files(base, aside, but=OF_WEIGHTS)
        write_one_by_one(aside / WEIGHTS, shapes, dtype, make, {"step": str(step)})
        merging.check_base()
        check()
        count = sum(torch.Size(shape).numel() for shape in shapes.values())
        config = ArmdConfig.from_pretrained(base)
        config.adapter_rank = merging.rank
        finish_folder(aside, config, weights=count, **card)
        write_sums(aside)
