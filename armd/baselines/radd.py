"""RADD (Ou et al. 2025): masked diffusion without time, which is an any-order model.

Its bound is the mean over all orders of the order's -log p. Of n tokens k are masked, k uniform in
1..n, and the cross-entropy is weighted n/k. In expectation that is MDLM's bound to the last digit,
but k does not scatter around n * t, so it varies less; network and sampler are MDLM's too.
"""

import torch

from ..model.shapes import Bool, Float, Tensor
from .denoiser import stratified
from .masked_diffusion import Absorbing, Noise, some_of


class Radd(Absorbing):
    def noise(self, scored: Bool[Tensor, "b n"], generator: torch.Generator | None) -> Noise:
        return Noise(*mask_any_number(scored, generator))


def mask_any_number(
    scored: Bool[Tensor, "b n"], generator: torch.Generator | None
) -> tuple[Bool[Tensor, "b n"], Float[Tensor, "b n"]]:
    """Of each row's scored tokens masks a number that is uniform in 1..all; weight all / number."""
    every = scored.sum(1, keepdim=True)
    level = stratified(len(scored), like=scored, generator=generator)[:, None]
    number = (level * every).long() + 1
    masked = some_of(scored, number, generator)
    return masked, (every / number).double().expand(scored.shape)


def expected_calls(length: int, steps: int) -> float:
    """Of the sampler for one text: the steps in which at least one token appears."""
    return steps * (1 - (1 - 1 / steps) ** length)
