"""Diffusion-LM (Li et al. 2022): diffusion on embeddings in T steps, and rounding to tokens.

The square-root schedule has alpha^2 = 1 - sqrt(t + 0.0001), so noise comes fast at first. The
network gives the guess itself, a point of the space; tokens follow from z_0 alone, by a softmax
over e z_0 and a bias. Training does not minimise the bound but the plain |e - guess|^2, the mean
over the space's dimensions, with -log p(token | z_0) and the size of the last z's mean.

Not as published: the guess is of the embedding, not of the embedding with z_0's noise in it, so
that z_0 is one more step of the same process; the way back has the smaller of the two usual
variances, that of q, for which each KL is the square above. The sampler does not round its guess
to the nearest embedding at every step (the paper's clamping): that is another process than the
bound's.
"""

import torch
from torch import nn
from torch.nn import functional as F

from ..model.head import target_log_probs
from ..model.shapes import Bool, Float, Int, Tensor
from .configuration import BaselineConfig
from .denoiser import not_padding, stratified
from .embedding_diffusion import EmbeddingDiffusion, parts_of, summed

START = 1e-4
LEAST = 1e-6
"""Of alpha^2, at the end of time."""


class DiffusionLm(EmbeddingDiffusion):
    """Written with other than diffusion_steps steps it is another process, on a coarser grid."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.leave = nn.Linear(config.d_model, config.d_embedding)
        nn.init.normal_(self.leave.weight, std=config.d_model**-0.5)
        nn.init.zeros_(self.leave.bias)
        self.rounding_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def gamma(self, time: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        kept = (1 - (time.double() + START).sqrt()).clamp(min=LEAST)
        return ((1 - kept) / kept).log()

    def nll(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        step, square, rounding = self._drawn(tokens, scored, generator)
        steps = self.config.diffusion_steps
        before, now = ((-self.gamma((step - k) / steps)).exp() for k in (1, 0))
        integral = summed(square, scored) * (before - now) * steps / 2
        return integral + summed(rounding + self.prior_kl(tokens[scored]), scored)

    def objective(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        _, square, rounding = self._drawn(tokens, scored, None)
        alpha, _ = parts_of(self.gamma(torch.ones((), dtype=torch.float64, device=tokens.device)))
        end = (alpha * F.embedding(tokens[scored], self.points())).square().sum(-1)
        each = (square + end) / self.config.d_embedding + rounding
        return each.sum() / scored.sum().clamp(min=1)

    def _drawn(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "b"], Float[Tensor, "m"], Float[Tensor, "m"]]:
        """A step of each row; |e - guess|^2 there and -log p(token | z_0), of scored tokens."""
        self.check_tokens(tokens)
        steps = self.config.diffusion_steps
        level = stratified(len(tokens), like=tokens, generator=generator)
        step = ((level * steps).long() + 1).double()
        gamma = self.gamma(step / steps)
        z = self.noised(tokens, scored, gamma, generator)
        guess = self.leave(self.rows_of(z, gamma, not_padding(scored))[scored])
        square = (F.embedding(tokens[scored], self.points()) - guess).double().square().sum(-1)
        first = self.noised(tokens, scored, self.gamma(torch.zeros_like(step)), generator)[scored]
        with torch.autocast(tokens.device.type, enabled=False):  # these are large: no bfloat16
            log_p = target_log_probs(*self._rounding(first), tokens[scored])
        return step, square, -log_p.double()

    def _rounding(
        self, z: Float[Tensor, "*b e"]
    ) -> tuple[Float[Tensor, "*b e1"], Float[Tensor, "v e1"]]:
        """Rows and matrix whose products are the logits: one more column for the bias."""
        bias = self.rounding_bias[:, None]
        return F.pad(z, (0, 1), value=1.0), torch.cat([self.points(), bias], 1)

    def guess(self, z: Float[Tensor, "b n e"], gamma: Float[Tensor, "b"]) -> Float[Tensor, "b n e"]:
        return self.leave(self.rows_of(z, gamma))

    def last_logits(
        self, z: Float[Tensor, "b n e"], gamma: Float[Tensor, "b"]
    ) -> Float[Tensor, "b n v"]:
        return F.linear(*self._rounding(z))
