"""DiffusionBERT (He et al. 2023): masked diffusion in T steps, by the spindle schedule: rare tokens
are masked first and come back last.

At time t of 1 token w is masked with probability g_w(t) = t - 0.3 c_w sin(pi t), c_w its
log-frequency, from 0 for the rarest token to 1, less the mean over the corpus. The network does not
read the time. From t to s it writes w with probability p(w) u_w, u_w = (g_w(t) - g_w(s)) / g_w(t),
and stays MASK with sum_w p(w) (1 - u_w). The bound is the sum over steps of the KL between that and
the same with the true token alone; training adds the auxiliary cross-entropy, as D3PM does.

Three things are not as published. The mean log-frequency is the corpus's and not the sentence's,
and the way back knows the schedule of each token it might write, not that of the true one: without
both, the figure would be no bound. Frequencies are learnt beside the network, by a unigram model,
and not counted beforehand. And weights start at random, not from BERT.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import ArmdError
from ..model.head import ROWS, accumulate_dtype
from ..model.sampling import invert
from ..model.shapes import Bool, Float, Int, Tensor
from .base import Drawn, SampleJob
from .configuration import BaselineConfig
from .denoiser import Trunk, not_padding, stratified, uniforms

STRENGTH = 0.3
"""Of the spindle; below 1 / pi every token is masked ever more, whatever its frequency."""
AUXILIARY = 0.01
"""Weight of the auxiliary loss against one step's term of the bound."""
PACE = 10.0
"""Log-frequencies are so many times their weights, which then learn them in as many fewer steps."""


class DiffusionBert(Trunk):
    """Written with other than diffusion_steps steps it is another process, on a coarser grid."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.unigram = nn.Parameter(torch.zeros(config.vocab_size))

    def log_frequency(self) -> Float[Tensor, "v"]:
        return (PACE * self.unigram).log_softmax(0)

    def spindle(self) -> Float[Tensor, "v"]:
        """c of each token. While frequencies are not known yet, all are about 0."""
        log_p = self.log_frequency().detach().double()
        share = (log_p - log_p.min()) / (log_p.max() - log_p.min()).clamp(min=1)
        return share - (log_p.exp() * share).sum()

    def nll(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        return self._drawn(tokens, scored, generator, auxiliary=0.0)

    def objective(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        auxiliary = AUXILIARY * self.config.diffusion_steps
        loss = self._drawn(tokens, scored, None, auxiliary).sum() / scored.sum().clamp(min=1)
        unigram = -(self.log_frequency()[tokens] * scored).sum() / scored.sum().clamp(min=1)
        return loss + unigram - unigram.detach()  # a gradient, and no part of the loss

    def _drawn(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None,
        auxiliary: float,
    ) -> Float[Tensor, "b"]:
        """One step's term of the bound, times T, and the auxiliary cross-entropy."""
        self.check_tokens(tokens)
        steps, spindle = self.config.diffusion_steps, self.spindle()
        level = stratified(len(tokens), like=tokens, generator=generator)
        time = ((level * steps).long() + 1).double() / steps
        gone = masked_share(time[:, None], spindle[tokens])
        masked = uniforms(*tokens.shape, like=tokens, generator=generator) < gone
        masked = masked & scored
        noisy = tokens.masked_fill(masked, self.mask_id)
        rows, which = (
            self.hidden(noisy, visible=not_padding(scored))[masked],
            masked.nonzero()[:, 0],
        )
        parts = zip(*(x.split(ROWS) for x in (rows, tokens[masked], time[which])), strict=True)
        made = [
            checkpoint(self._cost, *part, spindle, auxiliary, use_reentrant=False) for part in parts
        ]
        cost = torch.cat(made) if made else rows.new_zeros(0)
        return cost.new_zeros(len(tokens)).index_add(0, which, cost)

    def _cost(
        self, rows: Tensor, clean: Tensor, time: Tensor, spindle: Tensor, auxiliary: float
    ) -> Tensor:
        """From rows, so that a chunk's logits can be made again for the gradient."""
        logits = F.linear(rows, self.head_matrix())
        log_p = logits.to(accumulate_dtype(logits.dtype)).log_softmax(1)
        steps, at = self.config.diffusion_steps, clean[:, None]
        stay = stays(time[:, None], time[:, None] - 1 / steps, spindle).to(log_p.dtype)
        log_stay = stay.clamp(min=torch.finfo(stay.dtype).tiny).log()
        stays_masked = (log_p + log_stay).logsumexp(1)
        cross = -log_p.gather(1, at)[:, 0]
        true, log_true = stay.gather(1, at)[:, 0], log_stay.gather(1, at)[:, 0]
        return steps * ((1 - true) * cross + true * (log_true - stays_masked)) + auxiliary * cross

    def draw_texts(self, job: SampleJob) -> Drawn:
        """Ancestral sampling on an even grid. The time is no input of the network: while a step
        writes nothing, the next one needs no call."""
        batch, length, steps = job.batch, job.length, job.steps
        if job.temperature <= 0:
            raise ArmdError(
                f"temperature {job.temperature} must be above 0 for DiffusionBERT's rates"
            )
        tokens = torch.full((batch, length), self.mask_id, device=self.device)
        spindle, rows, calls = self.spindle(), None, 0
        for step in range(steps):
            time, to = (
                tokens.new_tensor(1 - s / steps, dtype=torch.float64) for s in (step, step + 1)
            )
            uniform = uniforms(batch, length, like=tokens, generator=job.generator)
            open_ = tokens == self.mask_id
            if not open_.any():
                break
            if rows is None:
                rows, calls = self.hidden(tokens), calls + 1
            stay = stays(time, to, spindle)
            drawn = torch.cat(
                [
                    invert(self.weights(r, stay, job.temperature).cumsum(1), u)
                    for r, u in zip(
                        rows[open_].split(ROWS), uniform[open_].split(ROWS), strict=True
                    )
                ]
            )
            tokens[open_] = drawn  # the last weight is that of MASK
            rows = None if bool((drawn < self.mask_id).any()) else rows
        return Drawn(tokens, calls)

    def weights(
        self, rows: Float[Tensor, "m d"], stay: Float[Tensor, "v"], temperature: float = 1.0
    ) -> Float[Tensor, "m w"]:
        """Of what each masked token becomes; the last is that of staying MASK."""
        p = (F.linear(rows, self.head_matrix()).double() / temperature).softmax(1)
        return torch.cat([p * (1 - stay), (p * stay).sum(1, keepdim=True)], 1)


def masked_share(time: Float[Tensor, "*b"], spindle: Float[Tensor, "*c"]) -> Float[Tensor, "*d"]:
    """g_w(t): the chance that a token is masked."""
    return time - STRENGTH * spindle * (math.pi * time).sin()


def stays(
    time: Float[Tensor, "*b"], to: Float[Tensor, "*b"], spindle: Float[Tensor, "*c"]
) -> Float[Tensor, "*d"]:
    """1 - u_w: the chance that a token which is masked at `time` is so at the earlier `to`."""
    before = masked_share(to, spindle).clamp(min=0)
    return before / masked_share(time, spindle)
