"""Diffusion on embeddings: what PLAID and Diffusion-LM share.

A token is a point e of a small space, and z = alpha e + sigma noise, alpha^2 + sigma^2 = 1, with
gamma = log(sigma^2 / alpha^2) from low (clean) to high (noise) as time goes from 0 to 1. From z the
network guesses e. One step back, from time t to s, is the Gaussian q(z_s | z_t, e) with the guess
for e, so its KL is (exp(-gamma_s) - exp(-gamma_t)) / 2 * |e - guess|^2. With the KL of the last z
from pure noise, and -log p(token | z_0), the sum over steps bounds -log p.
"""

from abc import abstractmethod
from itertools import pairwise

import torch
from torch import nn

from ..errors import ArmdError
from ..model.head import ROWS
from ..model.sampling import Sampling
from ..model.shapes import Bool, Float, Int, Tensor
from ..native.sample import draw
from .base import Drawn, SampleJob
from .configuration import BaselineConfig
from .denoiser import TimeCode, Trunk, uniforms


class EmbeddingDiffusion(Trunk):
    timed = True
    reads_last = False
    """The last z takes a pass of the network, too."""

    def add_embedding(self, config: BaselineConfig) -> None:
        if config.d_embedding < 1:
            raise ArmdError(f"d_embedding {config.d_embedding} must be at least 1")
        self.embedding = nn.Embedding(config.vocab_size, config.d_embedding)
        self.enter = nn.Linear(config.d_embedding, config.d_model, bias=False)

    def _init_linears(self, part: nn.Module) -> None:
        """z is about 1 in size, and so are the rows that it becomes and the code of time."""
        super()._init_linears(part)
        if part is self:
            nn.init.normal_(self.embedding.weight)
            nn.init.normal_(self.enter.weight, std=self.config.d_embedding**-0.5)
        elif isinstance(part, TimeCode):
            nn.init.normal_(part.outer.weight, std=part.d_model**-0.5)

    def points(self) -> Float[Tensor, "v e"]:
        """Where the tokens stand."""
        return self.embedding.weight

    @abstractmethod
    def gamma(self, time: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """In float64."""

    @abstractmethod
    def guess(self, z: Float[Tensor, "b n e"], gamma: Float[Tensor, "b"]) -> Float[Tensor, "b n e"]:
        """The network's e."""

    @abstractmethod
    def last_logits(
        self, z: Float[Tensor, "b n e"], gamma: Float[Tensor, "b"]
    ) -> Float[Tensor, "b n v"]:
        """Of the tokens, given z_0."""

    def rows_of(
        self,
        z: Float[Tensor, "b n e"],
        gamma: Float[Tensor, "b"],
        visible: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """The final rows. z is made about 1 in size; gamma stands for the time, because only then
        does the bound not depend on how time runs."""
        alpha, sigma = parts_of(gamma)
        size = self.points().detach().square().mean()
        scale = (alpha.square() * size + sigma.square()).rsqrt().to(z.dtype)
        rows = self.enter(z * scale[:, None, None])
        return self.read(rows, visible=visible, time=(gamma + 10) / 20)

    def noised(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        gamma: Float[Tensor, "b"],
        generator: torch.Generator | None,
    ) -> Float[Tensor, "b n e"]:
        """z; of tokens that are not scored, e."""
        clean = nn.functional.embedding(tokens, self.points())
        noise = normals(*clean.shape, like=clean, generator=generator).to(clean.dtype)
        alpha, sigma = (x.to(clean.dtype)[:, None, None] for x in parts_of(gamma))
        return torch.where(scored[..., None], alpha * clean + sigma * noise, clean)

    def prior_kl(self, tokens: Int[Tensor, "m"]) -> Float[Tensor, "m"]:
        """Of each token's last z from pure noise."""
        alpha, sigma = parts_of(
            self.gamma(torch.ones((), dtype=torch.float64, device=tokens.device))
        )
        variance = sigma.square()
        square = nn.functional.embedding(tokens, self.points()).double().square().sum(-1)
        rest = self.config.d_embedding * (variance - 1 - variance.log())
        return (alpha.square() * square + rest) / 2

    def draw_texts(self, job: SampleJob) -> Drawn:
        """Ancestral sampling on an even grid of times, z in float64, and a token drawn from each
        z_0. Below temperature 1 the score, (z - alpha guess) / sigma, is divided by it, as PLAID
        does, and so are the last logits."""
        batch, length, steps = job.batch, job.length, job.steps
        if job.temperature <= 0:
            raise ArmdError(f"temperature {job.temperature} must be above 0 to divide the score by")
        moves, size = max(1, steps - self.reads_last), (batch, length, self.config.d_embedding)
        z = normals(*size, like=self.bos, generator=job.generator)
        grid = self.gamma(torch.linspace(1, 0, moves + 1, dtype=torch.float64, device=z.device))
        for now, then in pairwise(grid):
            (alpha, _), (alpha_then, sigma_then) = parts_of(now), parts_of(then)
            guess = self.guess(z.to(self.bos.dtype), now.expand(batch)).double()
            guess = guess / job.temperature + z * (1 - 1 / job.temperature) / alpha
            share = -torch.expm1(then - now)  # of the guess in the next z
            z = alpha_then * (z * (1 - share) / alpha + share * guess)
            noise = normals(*size, like=z, generator=job.generator)
            z = z + share.sqrt() * sigma_then * noise
        tokens = self._spelt(z.to(self.bos.dtype), grid[-1], job.temperature, job.generator)
        return Drawn(tokens, moves + self.reads_last)

    def _spelt(
        self,
        z: Float[Tensor, "b n e"],
        gamma: Float[Tensor, ""],
        temperature: float,
        generator: torch.Generator | None,
    ) -> Int[Tensor, "b n"]:
        uniform = uniforms(*z.shape[:2], like=z, generator=generator)
        sampling = Sampling(temperature=temperature)
        few = max(1, ROWS // z.shape[1])  # texts at a time: logits are as wide as the vocabulary
        found = [
            draw(self.last_logits(some, gamma.expand(len(some))), u, sampling)[0]
            for some, u in zip(z.split(few), uniform.split(few), strict=True)
        ]
        return torch.cat(found)


def parts_of(gamma: Float[Tensor, "*b"]) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """alpha and sigma."""
    return torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()


def normals(
    *shape: int, like: Tensor, generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """Float64 numbers of mean 0 and variance 1, on the device of `like`."""
    device = like.device if generator is None else generator.device
    drawn = torch.randn(shape, dtype=torch.float64, generator=generator, device=device)
    return drawn.to(like.device)


def summed(each: Float[Tensor, "m"], scored: Bool[Tensor, "b n"]) -> Float[Tensor, "b"]:
    """The sum over each row's scored tokens."""
    return each.new_zeros(len(scored)).index_add(0, scored.nonzero()[:, 0], each)
