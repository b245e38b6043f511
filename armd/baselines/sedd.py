"""SEDD (Lou et al. 2024): the network gives ratios of probabilities, learnt by score entropy.

Noise is log-linear, alpha_t = 1 - t the share of tokens it has not touched. Going back, token x_i
becomes y at the rate noise(t) * Q(x_i, y) * s_y, s_y being the network's p_t(... y ...) / p_t(x).
With K(a) = a (log a - 1) and r_y that ratio for the true text, the denoising score entropy is
    integral over t of E sum_i noise(t) sum_{y != x_i} Q(x_i, y) [s_y - r_y log s_y + K(r_y)],
and with the KL of the starting noise it bounds -log p. Both integrals here run down to t = 0.
"""

import math
from abc import abstractmethod

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import ArmdError
from ..model.head import ROWS, accumulate_dtype
from ..model.sampling import invert
from ..model.shapes import Bool, Float, Int, Tensor
from .base import Drawn, SampleJob
from .denoiser import Trunk, not_padding, stratified, uniforms


class Sedd(Trunk):
    """What both kinds of noise share."""

    timed = True
    first_time = 1.0
    """Where writing starts; just below 1 if there is no end to noise(1)."""

    @abstractmethod
    def corrupt(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        time: Float[Tensor, "b"],
        generator: torch.Generator | None,
    ) -> Int[Tensor, "b n"]:
        """The text at that time."""

    @abstractmethod
    def movable(self, noisy: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        """Tokens that the way back may change; only these have a part in the bound."""

    @abstractmethod
    def entropy(
        self,
        logits: Float[Tensor, "m v"],
        noisy: Int[Tensor, "m"],
        clean: Int[Tensor, "m"],
        time: Float[Tensor, "m"],
    ) -> Float[Tensor, "m"]:
        """Each token's score entropy times noise(t)."""

    @abstractmethod
    def leap(
        self, logits: Float[Tensor, "m v"], noisy: Int[Tensor, "m"], time: float, to: float
    ) -> Float[Tensor, "m w"]:
        """Weights of what each token is at the earlier time `to`, by Tweedie: with Delta the noise
        between, [exp(-Delta Q) s]_y * exp(Delta Q)(y, x_i), which is exact for true ratios."""

    def prior_kl(self) -> float:
        """Of a fully noised token from where writing starts."""
        return 0.0

    def nll(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        self.check_tokens(tokens)
        time = self.first_time * (1 - stratified(len(tokens), like=tokens, generator=generator))
        noisy = self.corrupt(tokens, scored, time, generator)
        counts = self.movable(noisy) & scored
        rows = self.hidden(noisy, visible=not_padding(scored), time=time)[counts]
        which = counts.nonzero()[:, 0]
        parts = zip(
            *(x.split(ROWS) for x in (rows, noisy[counts], tokens[counts], time[which])),
            strict=True,
        )
        cost = torch.cat([checkpoint(self._entropy_of, *p, use_reentrant=False) for p in parts])
        total = cost.new_zeros(len(tokens)).index_add(0, which, cost * self.first_time)
        return total + scored.sum(1) * self.prior_kl()

    def _entropy_of(self, rows: Tensor, noisy: Tensor, clean: Tensor, time: Tensor) -> Tensor:
        """From rows, so that a chunk's logits can be made again for the gradient."""
        logits = F.linear(rows, self.head_matrix())
        dtype = accumulate_dtype(logits.dtype)
        return self.entropy(logits.to(dtype), noisy, clean, time.to(dtype))

    def draw_texts(self, job: SampleJob) -> Drawn:
        """All tokens leap at once, from time to time of an even grid. The time is an input of the
        network, so that every step is a call until nothing can change any more."""
        batch, length, steps = job.batch, job.length, job.steps
        if job.temperature <= 0:
            raise ArmdError(f"temperature {job.temperature} must be above 0 for SEDD's rates")
        tokens, calls = self.start(batch, length, job.generator), 0
        for step in range(steps):
            time, to = (self.first_time * (1 - s / steps) for s in (step, step + 1))
            uniform = uniforms(batch, length, like=tokens, generator=job.generator)
            open_ = self.movable(tokens)
            if not open_.any():
                break
            times = torch.full((batch,), time, dtype=torch.float64, device=tokens.device)
            rows = self.hidden(tokens, time=times)[open_]
            parts = zip(
                *(x.split(ROWS) for x in (rows, tokens[open_], uniform[open_])), strict=True
            )
            tokens[open_] = torch.cat(
                [
                    invert(self.weights(r, x, time, to, job.temperature).cumsum(-1), u)
                    for r, x, u in parts
                ]
            )
            calls += 1
        return Drawn(tokens, calls)

    def weights(
        self,
        rows: Float[Tensor, "m d"],
        noisy: Int[Tensor, "m"],
        time: float,
        to: float,
        temperature: float = 1.0,
    ) -> Float[Tensor, "m w"]:
        logits = F.linear(rows, self.head_matrix()).double()
        return self.leap(self.tempered(logits, temperature), noisy, time, to)

    def tempered(self, logits: Float[Tensor, "m v"], temperature: float) -> Float[Tensor, "m v"]:
        return logits / temperature

    @abstractmethod
    def start(
        self, batch: int, length: int, generator: torch.Generator | None
    ) -> Int[Tensor, "b n"]:
        """Pure noise."""


class SeddAbsorb(Sedd):
    """Noise writes MASK. For a masked token s_y = (1 - t) / t * q_y, q_y = exp(logit_y) / V: scaled
    by the noise as in the paper, so that the true q is p(y | what is written) at every time. The
    score entropy is then 1/t * (sum q - 1 - log q_x0): MDLM's, but q need not add up to 1."""

    def corrupt(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        time: Float[Tensor, "b"],
        generator: torch.Generator | None,
    ) -> Int[Tensor, "b n"]:
        hit = uniforms(*tokens.shape, like=tokens, generator=generator) < time[:, None]
        return tokens.masked_fill(hit & scored, self.mask_id)

    def movable(self, noisy: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        return noisy == self.mask_id

    def entropy(
        self,
        logits: Float[Tensor, "m v"],
        noisy: Int[Tensor, "m"],
        clean: Int[Tensor, "m"],
        time: Float[Tensor, "m"],
    ) -> Float[Tensor, "m"]:
        log_q = logits - math.log(logits.shape[1])
        at_clean = log_q.gather(1, clean[:, None])[:, 0]
        return (log_q.logsumexp(1).exp() - 1 - at_clean) / time

    def leap(
        self, logits: Float[Tensor, "m v"], noisy: Int[Tensor, "m"], time: float, to: float
    ) -> Float[Tensor, "m w"]:
        """The last weight is that of staying MASK, which the last step does not allow."""
        appear = (logits - math.log(logits.shape[1])).exp() * ((time - to) / time)
        if to <= 0:
            return F.pad(appear, (0, 1))
        stay = (1 - appear.sum(1, keepdim=True)).clamp(min=0)
        return torch.cat([appear, stay], 1)

    def tempered(self, logits: Float[Tensor, "m v"], temperature: float) -> Float[Tensor, "m v"]:
        """Sharper about the token; about whether to write one at all, as before."""
        rate = logits.logsumexp(1, keepdim=True)
        return (logits / temperature).log_softmax(1) + rate

    def start(
        self, batch: int, length: int, generator: torch.Generator | None
    ) -> Int[Tensor, "b n"]:
        return torch.full((batch, length), self.mask_id, device=self.device)


class SeddUniform(Sedd):
    """Noise writes any token, so a token may be mended many times. log s_y = logit_y. The paper's
    noise is geometric here; log-linear draws vary less, because the weights stay near 1/t."""

    first_time = 0.999

    def corrupt(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        time: Float[Tensor, "b"],
        generator: torch.Generator | None,
    ) -> Int[Tensor, "b n"]:
        hit = uniforms(*tokens.shape, like=tokens, generator=generator) < time[:, None]
        any_token = uniforms(*tokens.shape, like=tokens, generator=generator)
        return torch.where(hit & scored, (any_token * self.config.vocab_size).long(), tokens)

    def movable(self, noisy: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        return torch.ones_like(noisy, dtype=torch.bool)

    def entropy(
        self,
        logits: Float[Tensor, "m v"],
        noisy: Int[Tensor, "m"],
        clean: Int[Tensor, "m"],
        time: Float[Tensor, "m"],
    ) -> Float[Tensor, "m"]:
        v, same = logits.shape[1], noisy == clean
        away, stay = time / v, 1 - time + time / v  # p_t of another token than x0, and of x0
        others = logits.scatter(1, noisy[:, None], -torch.inf)
        rates = others.logsumexp(1).exp()
        logs = logits.sum(1) - logits.gather(1, noisy[:, None])[:, 0]
        # every y is as likely as x_i or r times so, but x0 if that is not x_i
        ratio = torch.where(same, away / stay, stay / away)
        bracket = ratio * (ratio.log() - 1)
        at_clean = logits.gather(1, clean[:, None])[:, 0]
        unchanged = rates - ratio * logs + (v - 1) * bracket
        changed = rates - (logs - at_clean) - ratio * at_clean + bracket - (v - 2)
        return torch.where(same, unchanged, changed) / (v * (1 - time))

    def leap(
        self, logits: Float[Tensor, "m v"], noisy: Int[Tensor, "m"], time: float, to: float
    ) -> Float[Tensor, "m w"]:
        v, kept = logits.shape[1], (1 - time) / (1 - to)  # exp(-Delta)
        ratio = logits.scatter(1, noisy[:, None], 0.0).exp()
        before = (ratio - (1 - kept) * ratio.mean(1, keepdim=True)).clamp(min=0) / kept
        here = F.one_hot(noisy, v) * kept + (1 - kept) / v
        return before * here

    def prior_kl(self) -> float:
        v, t = self.config.vocab_size, self.first_time
        stay, away = 1 - t + t / v, t / v
        return stay * math.log(stay * v) + (v - 1) * away * math.log(away * v)

    def start(
        self, batch: int, length: int, generator: torch.Generator | None
    ) -> Int[Tensor, "b n"]:
        drawn = uniforms(batch, length, like=self.bos, generator=generator)
        return (drawn * self.config.vocab_size).long()
