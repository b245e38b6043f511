"""The network that the diffusion baselines share: our layers, seeing both ways.

Rows are [BOS, tokens], as ours. The first rows are clean: no noise touches them, and they see one
another alone. That is BOS for most baselines; block diffusion has its finished text there too.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import ArmdError
from ..model.cpu_ops import Dropout, RmsNorm
from ..model.layers import Layer, attention, rope_cos_sin
from ..model.shapes import Bool, Float, Int, Tensor
from .base import Baseline
from .configuration import BaselineConfig


@dataclass(frozen=True)
class AttentionInputs:
    """What rows may see and where they stand."""

    clean: int
    """How many rows, the first ones, are clean."""
    rope: Float[Tensor, "b2 r half 2"]
    among_clean: Bool[Tensor, "#b 1 c c"] | Literal["all"] = "all"
    """Clean row to clean row."""
    noisy: Bool[Tensor, "#b 1 n m"] | Literal["all"] = "all"
    """Noisy row to every row."""


@dataclass
class Kept:
    """Keys and values of one layer's clean rows, while decoding."""

    key: Float[Tensor, "b m h e"]
    value: Float[Tensor, "b m h e"]

    def extend(self, key: Tensor, value: Tensor, clean: int) -> tuple[Tensor, Tensor]:
        """All keys and values; those of the first `clean` rows are kept."""
        end = self.key.shape[1] + clean
        key, value = torch.cat([self.key, key], 1), torch.cat([self.value, value], 1)
        self.key, self.value = key[:, :end], value[:, :end]
        return key, value


class DenoisingLayer(Layer):
    """Clean rows see clean rows, noisy rows see both."""

    last = False

    def forward(
        self, rows: Float[Tensor, "b r d"], inputs: AttentionInputs, kept: Kept | None = None
    ) -> Float[Tensor, "b r2 d"]:
        normed = self.attention_norm(rows)
        key, value = self.keys_values(normed, inputs.rope)
        if kept is not None:
            key, value = kept.extend(key, value, inputs.clean)
        known = key.shape[1] - rows.shape[1] + inputs.clean
        skip = inputs.clean if self.last else 0
        query = self.queries(normed[:, skip:], inputs.rope[:, skip:])
        own = inputs.clean - skip
        seen = attention(query[:, own:], key, value, inputs.noisy)
        if own:
            clean = attention(query[:, :own], key[:, :known], value[:, :known], inputs.among_clean)
            seen = torch.cat([clean, seen], 1)
        return self.project_and_mlp(rows[:, skip:], seen)


class LastDenoisingLayer(DenoisingLayer):
    """The noisy rows alone: nothing above reads the clean ones."""

    last = True


class TimeCode(nn.Module):
    """The time embedding, added to every row: a sinusoid, then a small MLP."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.inner = nn.Linear(d_model, d_model, bias=False)
        self.outer = nn.Linear(d_model, d_model, bias=False)

    def forward(self, time: Float[Tensor, "b"]) -> Float[Tensor, "b d"]:
        half = self.d_model // 2
        exponent = torch.arange(half, device=time.device, dtype=torch.float64) / half
        angle = 1000 * time[:, None].double() * 10000.0**-exponent
        code = torch.cat([angle.sin(), angle.cos()], -1).to(self.inner.weight.dtype)
        return self.outer(F.silu(self.inner(code)))


class Trunk(Baseline):
    """Embedding of the tokens and of MASK, layers, a tied head over the tokens alone."""

    timed = False
    """Whether the time is an input of the network: 0 for clean text to 1 for pure noise."""
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["DenoisingLayer", "LastDenoisingLayer"]  # noqa: RUF012

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.mask_id = config.vocab_size
        self.add_embedding(config)
        self.bos = nn.Parameter(torch.empty(config.d_model))
        self.layers = nn.ModuleList(kind(config) for kind in self.layer_kinds(config))
        if self.timed:
            self.time_code = TimeCode(config.d_model)
        self.norm = RmsNorm(config.d_model, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.gradient_checkpointing = False
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.init_std)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, Trunk):
            nn.init.normal_(module.bos, std=self.config.init_std)
            for part in module.modules():  # here, for the reason that ArmdLM gives
                self._init_linears(part)

    def _init_linears(self, part: nn.Module) -> None:
        """As ours: unit gain, and branches that add up to about one."""
        if isinstance(part, Layer):
            for linear in (part.query, part.key_value, part.gate_up):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            for linear in (part.out, part.down):
                spread = (2 * self.config.n_layers * linear.in_features) ** -0.5
                nn.init.normal_(linear.weight, std=spread)
        elif isinstance(part, TimeCode):
            nn.init.normal_(part.inner.weight, std=part.d_model**-0.5)
            # as large as the embeddings it is added to
            nn.init.normal_(part.outer.weight, std=self.config.init_std * part.d_model**-0.5)

    def add_embedding(self, config: BaselineConfig) -> None:
        self.embedding = nn.Embedding(config.vocab_size + 1, config.d_model)

    def layer_kinds(self, config: BaselineConfig) -> list[type[Layer]]:
        return [*[DenoisingLayer] * (config.n_layers - 1), LastDenoisingLayer]

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def head_matrix(self) -> Float[Tensor, "v d"]:
        """The head, tied to the embedding; MASK is never predicted."""
        return self.embedding.weight[:-1]

    def hidden(
        self,
        noisy: Int[Tensor, "b n"],
        *,
        visible: Bool[Tensor, "b n"] | None = None,
        time: Float[Tensor, "b"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """The final rows of a noisy text. Tokens that are not `visible` are seen by none."""
        return self.read(self.embedding(noisy), visible=visible, time=time)

    def read(
        self,
        noisy: Float[Tensor, "b n d"],
        *,
        visible: Bool[Tensor, "b n"] | None = None,
        time: Float[Tensor, "b"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """The final rows of a text that is embedded already."""
        bos = self.bos.expand(len(noisy), 1, -1)
        rows = self.dropout(torch.cat([bos, noisy], 1))
        if self.timed and time is not None:
            rows = rows + self.time_code(time)[:, None]
        position = torch.arange(rows.shape[1], device=noisy.device)[None]
        rope = rope_cos_sin(position, self.config).to(rows.dtype)
        if visible is None:
            return self.through(rows, AttentionInputs(1, rope))
        seen = F.pad(visible, (1, 0), value=True)[:, None, None]
        return self.through(
            rows, AttentionInputs(1, rope, noisy=seen.expand(-1, -1, noisy.shape[1], -1))
        )

    def through(
        self, rows: Float[Tensor, "b r d"], inputs: AttentionInputs, kept: list[Kept] | None = None
    ) -> Float[Tensor, "b n d"]:
        """All layers; returns the noisy rows."""
        for index, layer in enumerate(self.layers):
            if self.gradient_checkpointing and self.training:
                rows = checkpoint(layer, rows, inputs, use_reentrant=False)
            else:
                rows = layer(rows, inputs, None if kept is None else kept[index])
        return self.norm(rows)

    def check_tokens(self, tokens: Int[Tensor, "b n"]) -> None:
        self._check_length(tokens.shape[1])
        if tokens.device.type == "cpu" and tokens.numel():
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.config.vocab_size:
                raise ArmdError(
                    f"token {low if low < 0 else high} is outside the vocabulary of "
                    f"{self.config.vocab_size}; is this the model's own tokenizer?"
                )

    def check_sample(self, batch: int, length: int, steps: int) -> None:
        self._check_length(length)
        for name, value in (("batch", batch), ("length", length), ("steps", steps)):
            if value < 1:
                raise ArmdError(f"{name} {value} must be at least 1")

    def _check_length(self, length: int) -> None:
        if length > self.config.max_length:
            raise ArmdError(
                f"a text of {length} tokens passes max_length {self.config.max_length}; cut it, or "
                "build the model with a larger max_length"
            )


def not_padding(scored: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n"] | None:
    """What a network may see: all but the tokens after the last scored one, so that a text has the
    same bound however far it is padded. None: everything."""
    if bool(scored[:, -1].all()):
        return None
    return scored.flip(1).cumsum(1).flip(1) > 0


def uniforms(
    *shape: int, like: Tensor, generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """Float64 numbers in [0, 1), on the device of `like`."""
    device = like.device if generator is None else generator.device
    drawn = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
    return drawn.to(like.device)


def stratified(
    count: int, *, like: Tensor, generator: torch.Generator | None
) -> Float[Tensor, "c"]:
    """Numbers in [0, 1), one in each of `count` equal parts, in random order: each alone is
    uniform, together they vary less than independent ones."""
    device = like.device if generator is None else generator.device
    place = torch.randperm(count, generator=generator, device=device)
    offset = torch.rand(1, dtype=torch.float64, generator=generator, device=device)
    return ((place + offset) / count).to(like.device)
