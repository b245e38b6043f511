"""A recipe: everything that decides how a run goes, in frozen dataclasses. Presets return them, the
command line changes their fields, and each run keeps its own as config.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import tyro

from ..baselines import check_name, config_of
from ..errors import ArmdError
from .recipe_limits import check_limits

if TYPE_CHECKING:
    from ..model.configuration_armd import ArmdConfig


@dataclass(frozen=True)
class Network:
    """The model's size; its vocabulary comes with the data."""

    d_model: int = 768
    """Width of the hidden states."""
    n_layers: int = 12
    """Number of layers."""
    n_two_stream: int = 6
    """How many of the first layers carry both streams."""
    n_heads: int = 12
    """Attention heads of a layer."""
    length: int = 1024
    """Tokens in a training sequence."""
    query: Literal["prefix", "mean", "shift", "neighbor"] = "prefix"
    """Where the query stream starts: "prefix" is the paper's, "neighbor" the token before,
    "shift" that too, in an ordinary autoregressive model."""
    dropout: float = 0.02
    """Dropout on embeddings and residual branches."""
    pe_std: float = 0.0
    """Standard deviation of the position MLP's initial weights; 0 for 1/sqrt(fan_in)."""
    d_pe: int = 0
    """Width of the position code; 0 for a quarter of d_model."""

    def config(self, vocab_size: int, model: str = "armd") -> ArmdConfig:
        fields = dataclasses.asdict(self)
        fields["pe_std"], fields["d_pe"] = self.pe_std or None, self.d_pe or None
        return config_of(model, vocab_size=vocab_size, max_length=fields.pop("length"), **fields)


@dataclass(frozen=True)
class Curriculum:
    """In which orders the texts are learnt, step by step (curriculum.py turns this into orders)."""

    steps: int = 400_000
    """Steps of the progressive phase."""
    i_ar: int = 9_000
    """Train left to right only until this step."""
    i_perm: int = 48_000
    """From this step on rho positions are shuffled; from i_ar to here their number rises from 1."""
    rho: int = 32
    """Positions that are shuffled in the end."""
    shuffle: Literal["move", "among"] = "move"
    """How they are shuffled: each token moves to any place, or they change places among themselves
    (then a single one stays where it is)."""
    rho_of: Literal["window", "tokens"] = "window"
    """What rho counts in padded rows: places of the window, so that a row's own tokens are shuffled
    in proportion; or the row's own tokens."""
    sbp_steps: int = 0
    """Steps of the strided phase that follows: blocks of S tokens, S drawn for each step."""
    streams: tuple[int, ...] = (1, 2, 4)
    """The S to draw from."""
    p_prompt: float = 0.0
    """Fraction of strided steps in which the streams follow a prompt of up to half of the text."""
    p_random: float = 0.0
    """Fraction of steps trained on random orders instead."""
    p_masking: float = 0.0
    """Fraction of steps trained on orders of a masking process instead."""
    masking_steps: int = 32
    """Steps of that masking process."""
    p_infill: float = 0.0
    """Fraction of steps trained on infilling: blanks, given the text on both sides."""
    infill_span: int = 0
    """Blanks are spans of up to so many tokens; 0: single tokens, or one gap of any length."""
    infill_known: float = 0.75
    """Share of the text that is known between such spans, on average."""
    infill_order: Literal["forward", "random"] = "forward"
    """Which of such spans is filled first: the leftmost, or any."""

    @property
    def total(self) -> int:
        return self.steps + self.sbp_steps


@dataclass(frozen=True)
class Optimizer:
    """AdamW and its learning rate."""

    batch_size: int = 512
    """Sequences in a step, over all processes."""
    learning_rate: float = 3e-4
    """Learning rate after warmup."""
    beta1: float = 0.9
    """AdamW: decay of the mean of the gradient."""
    beta2: float = 0.999
    """AdamW: decay of the mean of its square."""
    eps: float = 1e-8
    """AdamW: added to the denominator."""
    weight_decay: float = 0.03
    """Weight decay of matrices; norms and vectors have none."""
    warmup: int = 2_000
    """Steps in which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after warmup: constant, or a cosine down to final_rate."""
    final_rate: float = 0.1
    """Learning rate at the end of the cosine, as a fraction of learning_rate."""
    clip: float = 1.0
    """Clip the gradient to this norm; 0 disables clipping."""
    ema: float = 0.0
    """Decay of the moving average of the weights (EMA), such as 0.9999; validation and export then
    use the average. 0: no averaging."""


@dataclass(frozen=True)
class Report:
    """What a run writes down, and how often, in steps; 0 for never."""

    log_every: int = 50
    """Steps between two rows of metrics.jsonl."""
    validate_every: int = 5_000
    """Steps between two validations on held-out text."""
    validate_rows: int = 512
    """Held-out sequences to validate on, always the same ones."""
    sample_every: int = 0
    """Steps between two sample texts in RUN/samples."""
    checkpoint_every: int = 5_000
    """Steps between two checkpoints."""
    keep: int = 2
    """How many of the last checkpoints to keep; the best one is kept, too."""
    keep_at: tuple[int, ...] = ()
    """Steps whose checkpoints are kept as well, as 60000,120000, and exported to RUN/exports."""
    tensorboard: bool = False
    """Write TensorBoard files to RUN/tensorboard."""


@dataclass(frozen=True)
class Machine:
    """How the work is done. None of this changes what is learnt, but for rounding and the draws of
    dropout, which each micro-batch of each process makes for itself: a run may go on with another
    number of processes, on another device, or with other choices here."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    micro_batch: int = 64
    """Sequences a device processes at a time; gradients of more are accumulated."""
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    """With many processes: replicate the model (ddp) or shard it (fsdp2)."""
    bf16: bool = True
    """bfloat16 autocast on CUDA."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory."""
    compile: bool = False
    """torch.compile each layer."""
    fused: bool = True
    """Use the fused AdamW kernel."""


@dataclass(frozen=True)
class Adaptation:
    """How a pretrained model is adapted (armd adapt); nothing of it is used by armd train."""

    base_model: str = ""
    """The folder of the model to adapt; empty: a model is trained from its first weights."""
    base: str = ""
    """Its checksum."""
    start: str = ""
    """The folder of an adapter to go on from; empty: a new one."""
    start_sum: str = ""
    """The checksum of its weights."""
    rank: int = 12
    """Rank of the adapters."""
    alpha: int = 24
    """Their weight is alpha / rank."""
    full: bool = False
    """All weights learn, not adapters."""
    exact: bool = False
    """Rows that read left to right take no adapter: one stream stays the source."""
    distill: float = 1.0
    """Share of the loss that is the distance to the source's left-to-right distribution."""
    right_text: float = 0.0
    """Share of the text's own next token where text on the right is known."""
    repeats: int = 1
    """How many steps take the same window, each in another order."""
    ahead: bool = False
    """In streams, the source reads some of the later ones first, and so knows the right side."""
    half: bool = True
    """Adapters are saved in bfloat16."""


@dataclass(frozen=True)
class Recipe:
    """One run."""

    preset: str = "owt-small"
    """The preset it started from."""
    model: str = "armd"
    """armd, or a baseline: ar, transformer-xl, mdlm, sedd-absorb, sedd-uniform, radd, d3pm,
    bd3lm-4, bd3lm-16, plaid, diffusion-lm, diffusion-bert, bert-mouth, sigma-gpt, xlnet."""
    seed: int = 0
    """Seed of weights, batches, orders and dropout."""
    data: str = ""
    """The folder that `armd prepare` made."""
    out: str = ""
    """The run's folder."""
    start: str = ""
    """Take the first weights from here: a run, or an exported model."""
    start_step: int = 0
    """Go on from the checkpoint of this step of the run `start`, optimizer state and all, as if the
    run had been this one; 0 takes its weights alone and begins at step 0."""
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
        check_limits(self)
        c = self.curriculum
        if c.total < 1 and not self.adapt.base_model:
            raise ArmdError("a run needs at least one step; raise --steps or --sbp-steps")
        if not 0 <= c.rho <= self.network.length:
            raise ArmdError(f"--rho {c.rho} must be between 0 and the length {self.network.length}")
        if c.i_perm < c.i_ar:
            raise ArmdError(f"--i-perm {c.i_perm} must not come before --i-ar {c.i_ar}")
        if not c.streams or min(c.streams) < 1 or max(c.streams) > self.network.length:
            raise ArmdError(f"--streams {c.streams} must lie between 1 and the length")
        shares = (c.p_random, c.p_masking, c.p_infill)
        if sum(shares) > 1:
            raise ArmdError("--p-random, --p-masking and --p-infill must be shares that fit into 1")
        if self.start_step and (not self.start or self.start_step >= c.total):
            raise ArmdError(
                f"--start-step {self.start_step} needs --start, a run, and more steps than that; "
                f"this recipe has {c.total}"
            )
        self._check_orders()

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
