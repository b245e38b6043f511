"""D3PM (Austin et al. 2021), absorbing: masked diffusion in T discrete steps.

After step t of T a token is masked with probability t/T, so going back from t it appears with
probability 1/t, and the ELBO is sum_t 1/t E[sum over masked tokens of -log p], seen at a random t.
Training adds the auxiliary cross-entropy. The time is an input of the network.
"""

import torch

from ..model.shapes import Bool, Tensor
from .configuration import BaselineConfig
from .denoiser import stratified, uniforms
from .masked_diffusion import Absorbing, Noise

AUXILIARY = 0.001
"""Weight of the auxiliary loss against one step's term of the ELBO."""


class D3pm(Absorbing):
    """Written with other than diffusion_steps steps it is another process, on a coarser grid."""

    timed = True

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.auxiliary = AUXILIARY * config.diffusion_steps

    def noise(self, scored: Bool[Tensor, "b n"], generator: torch.Generator | None) -> Noise:
        steps = self.config.diffusion_steps
        level = stratified(len(scored), like=scored, generator=generator)
        time = ((level * steps).long() + 1).double() / steps
        masked = uniforms(*scored.shape, like=scored, generator=generator) < time[:, None]
        return Noise(masked & scored, (1 / time)[:, None].expand(scored.shape), time)
