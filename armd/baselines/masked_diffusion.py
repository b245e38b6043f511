"""Masked diffusion: what MDLM, RADD, D3PM and BD3-LM share.

Noise replaces tokens by MASK and never touches what is written, so each of their bounds is a
weighted cross-entropy of the masked tokens. They differ in which tokens are masked, and in weights.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch

from ..model.head import ROWS, accumulate_dtype, target_log_probs, weighted_loss
from ..model.sampling import Sampling
from ..model.shapes import Bool, Float, Int, Tensor
from ..native.sample import draw
from .base import Drawn, SampleJob
from .denoiser import Trunk, not_padding, uniforms


@dataclass(frozen=True)
class Noise:
    """Which tokens a draw masks, and what it makes of them."""

    masked: Bool[Tensor, "b n"]
    weight: Float[Tensor, "b n"]
    """Of a masked token's -log p in the bound."""
    time: Float[Tensor, "b"] | None = None
    """For networks that take the time."""


class Absorbing(Trunk):
    """A masked diffusion; subclasses say how its noise is drawn."""

    auxiliary = 0.0
    """Weight of the plain cross-entropy that training adds to the bound."""

    @abstractmethod
    def noise(self, scored: Bool[Tensor, "b n"], generator: torch.Generator | None) -> Noise:
        """Masks some of the scored tokens, such that the weighted cross-entropy of those is in
        expectation the bound."""

    def denoise(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"], noise: Noise
    ) -> Float[Tensor, "b n d"]:
        """The final rows of the noised text."""
        noisy = tokens.masked_fill(noise.masked, self.mask_id)
        return self.hidden(noisy, visible=not_padding(scored), time=noise.time)

    def nll(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        self.check_tokens(tokens)
        noise = self.noise(scored, generator)
        rows = self.denoise(tokens, scored, noise)[noise.masked]
        log_probs = target_log_probs(rows, self.head_matrix(), tokens[noise.masked])
        cost = -log_probs * noise.weight[noise.masked].to(log_probs.dtype)
        return cost.new_zeros(len(tokens)).index_add(0, noise.masked.nonzero()[:, 0], cost)

    def objective(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        """The bound, with no logits kept for the gradient; while training, the auxiliary too."""
        self.check_tokens(tokens)
        noise = self.noise(scored, None)
        rows = self.denoise(tokens, scored, noise)[noise.masked]
        weight = noise.weight[noise.masked] + (self.auxiliary if self.training else 0.0)
        weight = weight / scored.sum().clamp(min=1)
        target = tokens[noise.masked]
        return weighted_loss(
            rows, self.head_matrix(), target, weight.to(accumulate_dtype(rows.dtype))
        )

    def draw_texts(self, job: SampleJob) -> Drawn:
        """Ancestral sampling on the grid 1, 1 - 1/steps ... 0. With a linear schedule each token
        appears in any of the steps with the same chance, whatever the network says, so the steps
        are drawn first. Between them the text does not change: with `skip` (the samplers' caching
        of unchanged steps) a row goes straight to its next step that writes something."""
        batch, length, steps = job.batch, job.length, job.steps
        when = (uniforms(batch, length, like=self.bos, generator=job.generator) * steps).long()
        uniform = uniforms(batch, length, like=self.bos, generator=job.generator)
        turn = dense_rank(when) if job.skip else when
        tokens = torch.full_like(when, self.mask_id)
        calls = int(turn.max()) + 1 if job.skip else steps
        for call in range(calls):
            chosen = turn == call
            rows = torch.ones_like(chosen[:, 0]) if not job.skip else chosen.any(1)
            time = 1 - when.where(chosen, 0).amax(1)[rows].to(uniform.dtype) / steps
            final = self.hidden(tokens[rows], time=time)[chosen[rows]]
            tokens[chosen] = self.choose(final, uniform[chosen], job.temperature)
        return Drawn(tokens, calls)

    def choose(
        self, rows: Float[Tensor, "m d"], uniform: Float[Tensor, "m"], temperature: float
    ) -> Int[Tensor, "m"]:
        """A token for each row, a chunk of logits at a time."""
        matrix, sampling = self.head_matrix(), Sampling(temperature=temperature)
        parts = zip(rows.split(ROWS), uniform.split(ROWS), strict=True)
        return torch.cat([draw((r @ matrix.mT)[None], u[None], sampling)[0][0] for r, u in parts])


def some_of(
    scored: Bool[Tensor, "b n"], number: Int[Tensor, "b 1"], generator: torch.Generator | None
) -> Bool[Tensor, "b n"]:
    """Any `number` of each row's scored tokens, every choice as likely as another."""
    lot = uniforms(*scored.shape, like=scored, generator=generator).masked_fill(~scored, 1.0)
    return (lot.argsort(1).argsort(1) < number) & scored


def dense_rank(step: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """For each number how many different smaller ones its row has."""
    ranked, index = step.sort(1)
    new = torch.zeros_like(ranked)
    new[:, 1:] = (ranked[:, 1:] != ranked[:, :-1]).long()
    return torch.zeros_like(step).scatter(1, index, new.cumsum(1))
