"""Tokens drawn by sample.c from the logits of torch: on a CPU full-length float64 temporaries cost
as much as a layer, and sorting them as much as many."""

from ctypes import c_void_p
from functools import lru_cache

import torch

from ..errors import ArmdError
from ..model import sampling as plain
from ..model.sampling import NOT_FINITE, Sampling
from ..model.shapes import Bool, Float, Int, Tensor
from .library import library
from .structs import NativeSampling


def draw(
    logits: Float[Tensor, "b m v"],
    uniform: Float[Tensor, "b m"],
    sampling: Sampling,
    seen: Bool[Tensor, "b v"] | None = None,
    given: Int[Tensor, "b m"] | None = None,
) -> tuple[Int[Tensor, "b m"], Float[Tensor, "b m"]]:
    """As model/sampling.draw, by sample.c where it can."""
    if not logits.is_cpu or logits.dtype != torch.float32 or library() is None:
        return plain.draw(logits, uniform, sampling, seen, given)
    token, logp = sample_rows(logits, uniform, sampling, seen, given)
    if bool((token < 0).any()):
        raise ArmdError(NOT_FINITE)
    return token, logp


def sample_rows(
    logits: Float[Tensor, "b m v"],
    uniform: Float[Tensor, "b m"],
    sampling: Sampling,
    seen: Bool[Tensor, "b v"] | None,
    given: Int[Tensor, "b m"] | None,
) -> tuple[Int[Tensor, "b m"], Float[Tensor, "b m"]]:
    """A token for each row, -1 where its logits are not finite, and its log-probability under the
    model, in float64. Arguments as in model/sampling.draw."""
    (batch, m, vocabulary), rows = logits.shape, logits.shape[0] * logits.shape[1]
    given, seen = (None if t is None else t.contiguous() for t in (given, seen))
    inputs = (logits.contiguous(), uniform.double().contiguous(), given)
    token = torch.empty(batch, m, dtype=torch.long)
    logp = torch.empty(batch, m, dtype=torch.float64)
    has = None
    if seen is not None:
        has = (c_void_p * rows)(*[seen.data_ptr() + r // m * vocabulary for r in range(rows)])
    failed = library().sample_rows(
        *(None if t is None else t.data_ptr() for t in inputs),
        *((NativeSampling * rows)(*[native_sampling(sampling)] * rows), has, rows, vocabulary),
        *(token.data_ptr(), logp.data_ptr()),
    )
    if failed:
        raise MemoryError("no memory to draw tokens")
    return token, logp


@lru_cache(256)
def native_sampling(sampling: Sampling) -> NativeSampling:
    """The same as sample.c reads it."""
    filters = (sampling.top_p or 0.0, sampling.min_p or 0.0, sampling.top_k or 0)
    return NativeSampling(sampling.temperature, *filters, sampling.repetition_penalty)
