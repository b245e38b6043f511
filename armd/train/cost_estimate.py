"""`armd plan`: what a preset will cost, read off the model itself on the meta device."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..errors import ArmdError
from ..runtime.atomic_files import write_figures
from .presets import preset as named
from .recipe import Recipe
from .recipe_limits import check_between

# name -> peak dense bfloat16 FLOP/s and bytes of memory, from the makers' data sheets
GPUS = {
    "h100": (989e12, 80e9),
    "h200": (989e12, 141e9),
    "b200": (2250e12, 180e9),
    "a100": (312e12, 80e9),
    "a100-40": (312e12, 40e9),
    "v100": (125e12, 32e9),
    "l40s": (362e12, 48e9),
    "4090": (165e12, 24e9),
}
PAPER_HOURS = {"owt-small": 19.0, "owt-medium": 50.0}
"""Per 100K steps, on 8 (or 4) H100: the paper does not say which run had which."""
VOCABULARY = {"lm1b": 30522, "lm1b-packed": 30522, "mini": 4096, "demo": 4096}


@dataclass(frozen=True)
class Cost:
    """What one device must hold and all must compute."""

    parameters: int
    flops_per_step: float
    """Forward and backward of the global batch, attention counted as full squares."""
    tokens_per_step: int
    state_bytes: float
    """Weights, gradients, AdamW's two moments and averaged weights, on one device."""
    activation_bytes: float
    """Kept for the backward pass by one device's windows at a time."""
    steps: int
    days: float
    hours_per_100k: float


def plan(
    preset: Annotated[str, tyro.conf.Positional],
    *,
    gpus: int = 8,
    gpu: str = "h100",
    utilisation: float = 0.4,
    parallel: Literal["ddp", "fsdp2"] = "ddp",
    micro_batch: int | None = None,
    vocab_size: int | None = None,
    json: Path | None = None,
) -> None:
    """Print parameters, FLOPs a step, memory a device and the days a run takes.

    Args:
        preset: The preset to plan.
        gpus: How many devices.
        gpu: Their kind: h100, h200, b200, a100, a100-40, v100, l40s, 4090.
        utilisation: Share of the peak that the run is taken to reach.
        parallel: ddp or fsdp2.
        micro_batch: Windows that a device works on at a time; the preset's if not given.
        vocab_size: Tokens of the vocabulary; that of the preset's data if not given.
        json: Write the figures to this file.
    """
    recipe = named(preset)
    if gpu not in GPUS:
        raise ArmdError(f"no GPU '{gpu}'; use one of {', '.join(GPUS)}")
    if gpus < 1 or not 0 < utilisation <= 1:
        raise ArmdError("--gpus must be at least 1, and --utilisation between 0 and 1")
    for name, value in (("micro-batch", micro_batch), ("vocab-size", vocab_size)):
        if value is not None:
            check_between(f"--{name}", value, 1, 2**24)
    machine = replace(recipe.machine, parallel=parallel)
    if micro_batch:
        machine = replace(machine, micro_batch=micro_batch)
    recipe = replace(recipe, machine=machine)
    vocabulary = vocab_size or VOCABULARY.get(preset, 50257)
    cost = estimate(recipe, vocabulary, gpus=gpus, peak=GPUS[gpu][0] * utilisation)
    print(describe(preset, cost, gpus=gpus, gpu=gpu, utilisation=utilisation))
    if (batch := recipe.optimizer.batch_size) % gpus:
        print(f"  to train       give a --batch-size that {gpus} divides; the preset's is {batch}")
    if json:
        known = {"preset": preset, "gpus": gpus, "gpu": gpu, "utilisation": utilisation}
        write_figures(json, known | asdict(cost))


def estimate(recipe: Recipe, vocab_size: int, *, gpus: int, peak: float) -> Cost:
    """The cost of a recipe on `gpus` devices that each do `peak` FLOP/s."""
    rows = min(recipe.machine.micro_batch, -(-recipe.optimizer.batch_size // gpus))
    parameters, flops, kept = measure(recipe, vocab_size)
    share = gpus if recipe.machine.parallel == "fsdp2" else 1
    held = 4 * (4 + bool(recipe.optimizer.ema)) * parameters / share
    flops *= recipe.optimizer.batch_size
    seconds = flops / (gpus * peak)
    return Cost(
        parameters=parameters,
        flops_per_step=flops,
        tokens_per_step=recipe.optimizer.batch_size * recipe.network.length,
        state_bytes=held,
        activation_bytes=kept * rows,
        steps=recipe.curriculum.total,
        days=seconds * recipe.curriculum.total / 86400,
        hours_per_100k=seconds * 1e5 / 3600,
    )


def measure(recipe: Recipe, vocab_size: int) -> tuple[int, float, float]:
    """Parameters, and for one window: FLOPs of forward and backward, and bytes kept between them in
    bfloat16. Two windows less one, so that what does not grow with the batch does not count."""
    import torch

    from ..model.modeling_armd import ArmdLM

    with torch.device("meta"):
        model = ArmdLM(recipe.network.config(vocab_size)).bfloat16()
    model.gradient_checkpointing = recipe.machine.activation_checkpointing
    model.train()
    (flops1, kept1), (flops2, kept2) = (_pass(model, recipe.network.length, b) for b in (1, 2))
    parameters = sum(weight.numel() for weight in model.parameters())
    return parameters, flops2 - flops1, kept2 - kept1


def _pass(model: Any, length: int, batch: int) -> tuple[float, float]:
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.utils.flop_counter import FlopCounterMode

    from ..model.order import left_to_right

    kept: dict[int, tuple[Any, int]] = {}
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        # fused attention keeps no scores, but on the meta device it is not fused
        if storage._cdata not in weights and tuple(tensor.shape[-2:]) != (length, length):
            kept[storage._cdata] = (storage, storage.nbytes())  # held, so that no id comes twice
        return tensor

    tokens = torch.zeros(batch, length, dtype=torch.long, device="meta")
    counter = FlopCounterMode(display=False)
    with counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        model.hidden(tokens, left_to_right(length)).sum().backward()
    # the head's loss knows no meta device: three products of rows and vocabulary
    head = 6.0 * tokens.numel() * model.embedding.weight.numel()
    size = float(sum(size for _, size in kept.values()))
    return counter.get_total_flops() + head, size


def describe(preset: str, cost: Cost, *, gpus: int, gpu: str, utilisation: float) -> str:
    peak, memory = GPUS[gpu]
    needed = cost.state_bytes + cost.activation_bytes
    fits = "fits" if needed < 0.9 * memory else "does not fit; lower --micro-batch"
    lines = [
        f"{preset} on {gpus} x {gpu} at {utilisation:.0%} of {peak / 1e12:.0f} TFLOP/s each",
        f"  parameters     {cost.parameters / 1e6:,.1f} M",
        f"  a step         {cost.tokens_per_step:,} tokens, {cost.flops_per_step / 1e15:.3f} PFLOP",
        f"  memory         {cost.state_bytes / 1e9:.1f} GB state + "
        f"{cost.activation_bytes / 1e9:.1f} GB activations of {memory / 1e9:.0f} GB: {fits}",
        f"  100K steps     {cost.hours_per_100k:.1f} h",
        f"  the whole run  {cost.days:.2f} days for {cost.steps:,} steps",
    ]
    if preset in PAPER_HOURS:
        hours = PAPER_HOURS[preset]
        reached = [
            cost.flops_per_step * 1e5 / (hours * 3600 * count * GPUS["h100"][0]) for count in (8, 4)
        ]
        lines.append(
            f"  the paper      {hours:.0f} h per 100K steps on 8 (or 4) H100: "
            f"{reached[0]:.0%} (or {reached[1]:.0%}) of their peak"
        )
    return "\n".join(lines)
