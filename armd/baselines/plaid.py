"""PLAID (Gulrajani and Hashimoto 2023): diffusion on embeddings, trained by its likelihood bound.

In continuous time the sum over steps is the integral of gamma' exp(-gamma) / 2 |e - guess|^2 dt.
Embeddings, of length 1, are learnt, and so are both ends of gamma. How gamma runs between them
changes not the bound but how much its draws vary: that alone is what it learns by. The guess is
the mean of the embeddings under the network's probabilities, whose logits have the token's own
likelihood, alpha / sigma^2 e z, added to them: for independent tokens that is the exact posterior.

An eighth of the rows sees -log p(token | z_0), the others the integral. Left out of the paper's
recipe: self-conditioning, muP and learning rates of their own for embeddings and gamma. Its
monotone network is a line of 64 pieces here. Its sampler takes the likeliest token from z_0, ours
draws one, so that it writes the texts that the bound is of.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..model.head import ROWS, accumulate_dtype
from ..model.shapes import Bool, Float, Int, Tensor
from .configuration import BaselineConfig
from .denoiser import not_padding, stratified
from .embedding_diffusion import EmbeddingDiffusion, parts_of, summed

PIECES = 64
LAST = 1 / 8
"""Share of the rows at time 0."""


class Plaid(EmbeddingDiffusion):
    reads_last = True

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(config.d_model, config.vocab_size)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.ends = nn.Parameter(torch.tensor([-3.0, 6.0]))
        self.pace = nn.Parameter(torch.zeros(PIECES))

    def points(self) -> Float[Tensor, "v e"]:
        return F.normalize(self.embedding.weight, dim=1)

    def schedule(
        self, time: Float[Tensor, "*b"]
    ) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
        """Which share of the way from one end of gamma to the other is done, and how fast."""
        each = self.pace.double().softmax(0)
        piece = (time * PIECES).long().clamp(max=PIECES - 1)
        speed = each[piece] * PIECES
        done = F.pad(each.cumsum(0), (1, 0))[piece]
        return done + speed * (time - piece / PIECES), speed

    def between(self, share: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        low, high = self.ends.double()
        return low + (high - low) * share

    def gamma(self, time: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return self.between(self.schedule(time)[0])

    def nll(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        self.check_tokens(tokens)
        level = stratified(len(tokens), like=tokens, generator=generator)
        last = level < LAST
        share, speed = self.schedule(((level - LAST) / (1 - LAST)).clamp(min=0))
        squared: list[Tensor] = []  # each row's part of the integral, once it is known
        if share.requires_grad:
            for x in (share, speed):  # the schedule is to minimise the square of that, not its mean
                x.register_hook(lambda grad: grad * 2 * squared[0])
        gamma = self.between(share)
        z = self.noised(tokens, scored, gamma, generator)
        rows = self.rows_of(z, gamma, not_padding(scored))[scored]
        log_p, square = self._scores(rows, z[scored], gamma, tokens[scored], scored)
        slope = speed * (self.ends[1] - self.ends[0]) * (-gamma).exp() / 2
        weight = torch.where(last, 0.0, slope / (1 - LAST))
        integral = summed(square.double(), scored) * weight
        squared.append((integral / scored.sum(1).clamp(min=1)).detach())
        final = summed(-log_p.double(), scored) * last / LAST
        return integral + final + summed(self.prior_kl(tokens[scored]), scored)

    def _scores(
        self,
        rows: Float[Tensor, "m d"],
        z: Float[Tensor, "m e"],
        gamma: Float[Tensor, "b"],
        target: Int[Tensor, "m"],
        scored: Bool[Tensor, "b n"],
    ) -> tuple[Float[Tensor, "m"], Float[Tensor, "m"]]:
        """log p of each token, and |e - guess|^2."""
        gammas = gamma[scored.nonzero()[:, 0]]
        parts = zip(*(x.split(ROWS) for x in (rows, z, gammas, target)), strict=True)
        points = self.points()
        made = [checkpoint(self._score, *p, points, use_reentrant=False) for p in parts]
        if not made:
            return rows.new_zeros(0), rows.new_zeros(0)
        log_p, square = zip(*made, strict=True)
        return torch.cat(log_p), torch.cat(square)

    def _score(
        self, rows: Tensor, z: Tensor, gamma: Tensor, target: Tensor, points: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_p = self._logits(rows, z, gamma, points).log_softmax(1)
        guess = log_p.exp() @ points.to(log_p.dtype)
        square = (points[target].to(log_p.dtype) - guess).square().sum(1)
        return log_p.gather(1, target[:, None])[:, 0], square

    def _logits(
        self, rows: Tensor, z: Tensor, gamma: Tensor, points: Tensor
    ) -> Float[Tensor, "*b v"]:
        """What the network says of the token, and what z itself says."""
        alpha, sigma = parts_of(gamma)
        pull = (alpha / sigma.square()).to(z.dtype)[..., None]
        said = self.head(rows)
        said = said.to(accumulate_dtype(said.dtype))
        with torch.autocast(z.device.type, enabled=False):  # these are large: no bfloat16
            return said + F.linear((pull * z).to(said.dtype), points.to(said.dtype))

    def guess(self, z: Float[Tensor, "b n e"], gamma: Float[Tensor, "b"]) -> Float[Tensor, "b n e"]:
        rows, points = self.rows_of(z, gamma), self.points()
        gammas = gamma[:, None].expand(z.shape[:2])
        parts = zip(*(x.flatten(0, 1).split(ROWS) for x in (rows, z, gammas)), strict=True)
        made = [self._logits(r, x, g, points).softmax(-1).to(z.dtype) @ points for r, x, g in parts]
        return torch.cat(made).view(z.shape)

    def last_logits(
        self, z: Float[Tensor, "b n e"], gamma: Float[Tensor, "b"]
    ) -> Float[Tensor, "b n v"]:
        rows = self.rows_of(z, gamma)
        return self._logits(rows, z, gamma[:, None].expand(rows.shape[:2]), self.points())
