"""Draws of tokens by the fastest form there is: sample.c, or model/sampling.py."""

import torch

from ..errors import ArmdError
from ..model import sampling as plain
from ..model.sampling import NOT_FINITE as NOT_FINITE
from ..model.sampling import Sampling as Sampling
from ..model.shapes import Bool, Float, Int, Tensor
from ..native.library import library
from ..native.sample import sample_rows


def draw(
    logits: Float[Tensor, "b m v"],
    uniform: Float[Tensor, "b m"],
    sampling: Sampling,
    seen: Bool[Tensor, "b v"] | None = None,
    given: Int[Tensor, "b m"] | None = None,
) -> tuple[Int[Tensor, "b m"], Float[Tensor, "b m"]]:
    """As model/sampling.draw."""
    if not logits.is_cpu or logits.dtype != torch.float32 or library() is None:
        return plain.draw(logits, uniform, sampling, seen, given)
    token, logp = sample_rows(logits, uniform, sampling, seen, given)
    if bool((token < 0).any()):
        raise ArmdError(NOT_FINITE)
    return token, logp
