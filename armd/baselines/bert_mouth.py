"""BERT's mouth (Wang and Cho 2019): a masked language model that writes by Gibbs sampling.

It is trained as BERT is: of 15 % of a text's tokens, 80 % become MASK, 10 % any token, 10 % stay as
they are, and the loss is the mean cross-entropy of those 15 %. Its figure is the pseudo-likelihood,
the sum of -log p(token | all others), seen at one random token of each text. That is no likelihood
and no bound of one: every token sees its right neighbours, so it is far below both.

The paper takes a BERT that is trained already, and visits places at random; here a sweep visits
every place once, in a random order, so that no MASK is left after the first.
"""

import torch

from ..model.head import accumulate_dtype, weighted_loss
from ..model.shapes import Bool, Float, Int, Tensor
from .base import Drawn, SampleJob
from .denoiser import not_padding, uniforms
from .masked_diffusion import Absorbing, Noise, some_of

CHOSEN, MASKED, REPLACED = 0.15, 0.8, 0.1


class BertMouth(Absorbing):
    figure = "pseudo-likelihood"

    def noise(self, scored: Bool[Tensor, "b n"], generator: torch.Generator | None) -> Noise:
        """One token of each text, which stands for all."""
        every = scored.sum(1, keepdim=True)
        masked = some_of(scored, torch.ones_like(every), generator)
        return Noise(masked, every.double().expand(scored.shape))

    def objective(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        self.check_tokens(tokens)
        chosen, noisy = self.corrupt(tokens, scored, None)
        rows = self.hidden(noisy, visible=not_padding(scored))[chosen]
        weight = rows.new_full((len(rows),), 1.0, dtype=accumulate_dtype(rows.dtype))
        return weighted_loss(rows, self.head_matrix(), tokens[chosen], weight / max(1, len(rows)))

    def corrupt(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None,
    ) -> tuple[Bool[Tensor, "b n"], Int[Tensor, "b n"]]:
        """The chosen tokens, at least one of each text, and the text that the network reads."""
        number = (CHOSEN * scored.sum(1, keepdim=True)).round().long().clamp(min=1)
        chosen = some_of(scored, number, generator)
        lot, other = (uniforms(*tokens.shape, like=tokens, generator=generator) for _ in range(2))
        any_token = (other * self.config.vocab_size).long()
        changed = any_token.where(lot < MASKED + REPLACED, tokens)
        changed = changed.masked_fill(lot < MASKED, self.mask_id)
        return chosen, changed.where(chosen, tokens)

    def draw_texts(self, job: SampleJob) -> Drawn:
        """From MASK everywhere: a step masks one place and draws it given all others. With fewer
        steps than tokens it draws several at once, so that one sweep is done. Every step writes,
        so that `skip` has none to leave out."""
        batch, length, steps = job.batch, job.length, job.steps
        together = -(-length // steps)
        sweep = -(-length // together)
        tokens = torch.full((batch, length), self.mask_id, device=self.device)
        places, calls = tokens, max(sweep, steps // sweep * sweep)
        for call in range(calls):
            if call % sweep == 0:
                places = uniforms(batch, length, like=tokens, generator=job.generator).argsort(1)
            now = places[:, call % sweep * together :][:, :together]
            tokens.scatter_(1, now, self.mask_id)
            index = now[..., None].expand(-1, -1, self.config.d_model)
            rows = self.hidden(tokens).gather(1, index).flatten(0, 1)
            uniform = uniforms(*now.shape, like=tokens, generator=job.generator).flatten()
            tokens.scatter_(1, now, self.choose(rows, uniform, job.temperature).view_as(now))
        return Drawn(tokens, calls)
