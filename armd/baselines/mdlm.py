"""MDLM (Sahoo et al. 2024): masked diffusion in continuous time.

At time t a token is masked with probability t (the log-linear schedule, alpha_t = 1 - t). Written
tokens are carried over and MASK is never predicted (SUBS), which leaves of the ELBO
E_t [1/t * sum over masked tokens of -log p]. As in the paper's own best setting the network does
not read the time.
"""

import torch

from ..model.shapes import Bool, Tensor
from .denoiser import stratified, uniforms
from .masked_diffusion import Absorbing, Noise


class Mdlm(Absorbing):
    def noise(self, scored: Bool[Tensor, "b n"], generator: torch.Generator | None) -> Noise:
        # times in (0, 1], one in each part of it: the low-variance sampler
        time = 1 - stratified(len(scored), like=scored, generator=generator)[:, None]
        masked = (uniforms(*scored.shape, like=scored, generator=generator) < time) & scored
        return Noise(masked, (1 / time).expand(scored.shape))
