"""What trainer and evaluation ask of every baseline that is no relative of our model."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import MaskedLMOutput

from ..model.order import Order
from ..model.shapes import Bool, Float, Int, Tensor
from ..model.strict_model import StrictModel, refuse_unknown
from .configuration import BaselineConfig


@dataclass(frozen=True)
class Drawn:
    """Texts that a sampler wrote."""

    tokens: Int[Tensor, "b n"]
    calls: int
    """Passes of the model that it took, without steps that changed nothing and were skipped."""


@dataclass(frozen=True)
class SampleJob:
    """What a sampler is to write; see Baseline.sample."""

    batch: int
    length: int
    steps: int
    temperature: float
    generator: torch.Generator | None
    skip: bool


class Baseline(StrictModel):
    """A baseline. Randomness comes from `generator`, or, without one, from torch's own state, which
    the trainer sets for every step."""

    config_class = BaselineConfig
    config: BaselineConfig
    accepts_loss_kwargs = False  # transformers' Trainer would hand over num_items_in_batch
    figure = "bound"
    """What nll is, as registry.figure_of gives it by name."""

    @abstractmethod
    def nll(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        """One unbiased draw of the bound on -log p of each row's scored tokens, in nats; or of the
        pseudo-likelihood, or -log p itself. Tokens that are not scored (pads) are never noised."""

    @torch.no_grad()
    def sample(
        self,
        *,
        batch: int,
        length: int,
        steps: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        skip: bool = True,
    ) -> Drawn:
        """Texts from nothing, with at most about `steps` passes of the model; float64 draws. `skip`
        leaves out steps that are known to write nothing."""
        self.check_sample(batch, length, steps)
        return self.draw_texts(SampleJob(batch, length, steps, temperature, generator, skip))

    @abstractmethod
    def check_sample(self, batch: int, length: int, steps: int) -> None:
        """Raise for texts that the model cannot write."""

    @abstractmethod
    def draw_texts(self, job: SampleJob) -> Drawn:
        """The sampler itself."""

    def objective(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        """What training minimises: the mean over scored tokens."""
        return self.nll(tokens, scored).sum() / scored.sum().clamp(min=1)

    def forward(
        self,
        input_ids: Int[Tensor, "b n"],
        order: Order | None = None,
        labels: Int[Tensor, "b n"] | None = None,
        **other: Any,
    ) -> MaskedLMOutput:
        """The training loss, or, in eval mode, nll alone: the mean over scored tokens. The
        order that our model's trainer gives is none of its business. Padding has labels -100."""
        refuse_unknown(other, "input_ids, order and labels")
        scored = torch.ones_like(input_ids, dtype=torch.bool) if labels is None else labels >= 0
        if self.training:
            loss = self.objective(input_ids, scored)
        else:
            loss = self.nll(input_ids, scored).sum() / scored.sum().clamp(min=1)
        return MaskedLMOutput(loss=loss)  # type: ignore[arg-type]
