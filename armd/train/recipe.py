"""A recipe: everything that decides how a run goes, in frozen dataclasses. Presets return them, the
command line changes their fields, and each run keeps its own as config.json."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ..baselines import check_name, config_of
from ..errors import ArmdError

if TYPE_CHECKING:
    from ..model.configuration_armd import ArmdConfig


@dataclass(frozen=True)
class Network:
    """The model's size; its vocabulary comes with the data."""

    d_model: int = 768
    """Width of a row."""
    n_layers: int = 12
    n_two_stream: int = 6
    """How many of the first layers carry both streams."""
    n_heads: int = 12
    length: int = 1024
    """Tokens in a window of text."""
    query: Literal["prefix", "mean", "shift", "neighbor"] = "prefix"
    """Where the query stream starts: "prefix" is the paper's, "neighbor" the token before,
    "shift" that too, in an ordinary autoregressive model."""
    dropout: float = 0.02
    pe_std: float = 0.0
    """Spread of the position MLP's first weights; 0 for unit gain, 1/sqrt(fan_in)."""

    def config(self, vocab_size: int, model: str = "armd") -> ArmdConfig:
        fields = dataclasses.asdict(self)
        fields["pe_std"] = self.pe_std or None
        return config_of(model, vocab_size=vocab_size, max_length=fields.pop("length"), **fields)


@dataclass(frozen=True)
class Curriculum:
    """In which orders the texts are learnt, step by step (curriculum.py turns this into orders)."""

    steps: int = 400_000
    """Steps of the progressive phase."""
    i_ar: int = 9_000
    """Until this step, left to right only."""
    i_perm: int = 48_000
    """From this step on, rho places are shuffled; between the two, linearly more from 1."""
    rho: int = 32
    """The most places that are shuffled."""
    sbp_steps: int = 0
    """Steps of the strided phase that follows: blocks of S tokens, S drawn for each step."""
    streams: tuple[int, ...] = (1, 2, 4)
    """The S to draw from."""
    p_random: float = 0.0
    """Share of steps learnt in fully random orders instead."""
    p_masking: float = 0.0
    """Share of steps learnt in orders of a masking process instead."""
    masking_steps: int = 32
    """Steps of that masking process."""
    p_infill: float = 0.0
    """Share of steps in which blanks are filled in, given the text on both sides."""

    @property
    def total(self) -> int:
        return self.steps + self.sbp_steps


@dataclass(frozen=True)
class Optimizer:
    """AdamW and its learning rate."""

    batch_size: int = 512
    """Windows in a step, over all processes."""
    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.03
    """On matrices only."""
    warmup: int = 2_000
    """Steps in which the rate climbs linearly."""
    schedule: Literal["constant", "cosine"] = "constant"
    final_rate: float = 0.1
    """Where the cosine ends, as a share of learning_rate."""
    clip: float = 1.0
    """The longest gradient; 0 for any."""
    ema: float = 0.0
    """Decay of the averaged weights, such as 0.9999; they are then the ones validated and exported.
    0: no averaging."""


@dataclass(frozen=True)
class Report:
    """What a run writes down, and how often, in steps; 0 for never."""

    log_every: int = 50
    validate_every: int = 5_000
    validate_rows: int = 512
    """Held-out windows, always the same ones."""
    sample_every: int = 0
    checkpoint_every: int = 5_000
    keep: int = 2
    """How many of the last checkpoints stay; the best one stays, too."""
    tensorboard: bool = False


@dataclass(frozen=True)
class Machine:
    """How the work is done. None of this changes what is learnt, so a run may go on with another
    number of processes, on another device, or with other choices here."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    micro_batch: int = 64
    """The most windows that one device works on at a time; more are added up."""
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    """With many processes: a whole model on each, or a share."""
    bf16: bool = True
    """bfloat16 autocast on CUDA."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass rather than keep them."""
    compile: bool = False
    """torch.compile each layer."""
    fused: bool = True
    """AdamW as one kernel for many weights."""


@dataclass(frozen=True)
class Adaptation:
    """How a pretrained model is adapted (armd adapt); nothing of it is used by armd train."""

    base_model: str = ""
    """The folder of the model to adapt; empty: a model is trained from its first weights."""
    base: str = ""
    """Its checksum."""
    rank: int = 12
    alpha: int = 24
    full: bool = False
    """All weights learn, not adapters."""
    distill: float = 1.0
    """Share of the loss that is the distance to the source's left-to-right distribution."""
    half: bool = True
    """Adapters are saved in bfloat16."""


@dataclass(frozen=True)
class Recipe:
    """One run."""

    preset: str = "owt-small"
    """The preset it started from."""
    model: str = "armd"
    """armd, or a rival: ar, mdlm, sedd-absorb, sedd-uniform, radd, d3pm, bd3lm-4, bd3lm-16,
    sigma-gpt, xlnet."""
    seed: int = 0
    data: str = ""
    """The folder that `armd prepare` made."""
    out: str = ""
    """The run's folder."""
    start: str = ""
    """Take the first weights from here: a run, or an exported model."""
    network: Network = field(default_factory=Network)
    curriculum: Curriculum = field(default_factory=Curriculum)
    optimizer: Optimizer = field(default_factory=Optimizer)
    report: Report = field(default_factory=Report)
    machine: Machine = field(default_factory=Machine)
    adapt: tyro.conf.Suppress[Adaptation] = field(default_factory=Adaptation)

    def config(self, vocab_size: int) -> ArmdConfig:
        """Of the model that is to be trained."""
        return self.network.config(vocab_size, self.model)

    def check(self) -> None:
        """Raise for what can be seen to fail before any work is done."""
        check_name(self.model)
        c, o = self.curriculum, self.optimizer
        if c.total < 1 and not self.adapt.base_model:
            raise ArmdError("a run needs at least one step; raise --steps or --sbp-steps")
        for name, value in (
            ("batch-size", o.batch_size),
            ("micro-batch", self.machine.micro_batch),
        ):
            if value < 1:
                raise ArmdError(f"--{name} {value} must be at least 1")
        if not 0 <= c.rho <= self.network.length:
            raise ArmdError(f"--rho {c.rho} must be between 0 and the length {self.network.length}")
        if c.i_perm < c.i_ar:
            raise ArmdError(f"--i-perm {c.i_perm} must not come before --i-ar {c.i_ar}")
        if not c.streams or min(c.streams) < 1 or max(c.streams) > self.network.length:
            raise ArmdError(f"--streams {c.streams} must lie between 1 and the length")
        shares = (c.p_random, c.p_masking, c.p_infill)
        if min(shares) < 0 or sum(shares) > 1:
            raise ArmdError("--p-random, --p-masking and --p-infill must be shares that fit into 1")
        self._check_orders()
        if self.report.keep < 1:
            raise ArmdError(f"--keep {self.report.keep} must be at least 1")
        if not 0 <= o.ema < 1:
            raise ArmdError(f"--ema {o.ema} must be at least 0 and below 1")

    def _check_orders(self) -> None:
        """Raise for orders that the model cannot learn."""
        c, n = self.curriculum, self.network
        strided = c.sbp_steps and set(c.streams) != {1}
        shares = c.p_random + c.p_masking + c.p_infill
        if self.model in ("armd", "ar"):
            if n.query == "shift" and (c.rho > 1 or strided or shares):
                raise ArmdError(
                    "query shift is autoregressive, left to right alone: add --rho 0 --sbp-steps 0"
                )
            if self.model == "ar" and n.query != "shift":
                raise ArmdError(f"model ar has query shift; leave out --query {n.query}")
        elif self.model == "xlnet":
            if n.n_two_stream != n.n_layers:
                raise ArmdError(
                    "model xlnet carries both streams through every layer: add "
                    f"--n-two-stream {n.n_layers}"
                )
        elif self.model == "sigma-gpt":
            if strided or c.p_masking:
                raise ArmdError(
                    "model sigma-gpt writes one token at a time: leave out --sbp-steps, "
                    "--streams and --p-masking"
                )
        elif c.rho or c.sbp_steps or shares:
            raise ArmdError(
                f"model {self.model} learns no orders: leave out --rho, --sbp-steps, --p-random, "
                "--p-masking and --p-infill"
            )


def as_json(recipe: Recipe) -> str:
    return json.dumps(dataclasses.asdict(recipe), indent=2) + "\n"


def from_dict(values: dict[str, Any], base: Recipe, source: str) -> Recipe:
    """`base` with the fields that `values` names; raises for a field there is none of."""
    return _changed(base, values, source)


def _changed(base: Any, values: dict[str, Any], source: str) -> Any:
    known = {f.name for f in dataclasses.fields(base)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ArmdError(
                f"{source} sets '{name}', which is no field; armd train --help lists them"
            )
        now = getattr(base, name)
        if dataclasses.is_dataclass(now):
            if not isinstance(value, dict):
                raise ArmdError(f"{source}: '{name}' must be a table of fields")
            value = _changed(now, value, source)
        elif isinstance(now, tuple):
            value = tuple(value)
        elif type(value) is not type(now) and not (isinstance(now, float) and type(value) is int):
            raise ArmdError(f"{source}: '{name}' must be a {type(now).__name__}, not {value!r}")
        changes[name] = value
    return dataclasses.replace(base, **changes)


def read(path: str | Path, base: Recipe) -> Recipe:
    """`base` changed by a JSON or TOML file."""
    path = Path(path)
    try:
        text = path.read_text("utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ArmdError(f"cannot read the config {path}: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArmdError(f"{path} is neither JSON nor TOML: {error}") from None
    if not isinstance(values, dict):
        raise ArmdError(f"{path} must hold a table of fields")
    return from_dict(values, base, str(path))


def differences(a: Recipe, b: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Fields in which two recipes would learn or report differently, with both values. Where the
    data lie and which machine does the work are no such fields."""
    for part in ("network", "curriculum", "optimizer", "report", "adapt"):
        one, two = getattr(a, part), getattr(b, part)
        for f in dataclasses.fields(one):
            if getattr(one, f.name) != getattr(two, f.name):
                yield f.name, getattr(one, f.name), getattr(two, f.name)
    for name in ("model", "seed", "start"):
        if getattr(a, name) != getattr(b, name):
            yield name, getattr(a, name), getattr(b, name)
