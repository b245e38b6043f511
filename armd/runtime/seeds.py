"""Seeds: every draw has a name, such as (seed, number of the sample), and its random numbers follow
from that name alone, so that it is the same in any batch, on any rank, on any machine.

Two derivations exist, and both must stay as they are: runs and texts of earlier versions were drawn
with them. `seeded` names draws in generation and evaluation, `seed_of` those of training."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING

from ..errors import ArmdError

if TYPE_CHECKING:
    import torch


def seeded(*words: int | str) -> torch.Generator:
    """A generator of its own for the draw that `words` name."""
    import torch

    digest = sha256(" ".join(map(str, words)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def seed_of(*parts: int | str) -> int:
    """The seed of a draw of training, for torch."""
    digest = blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generators_per_row(
    generator: torch.Generator | Sequence[torch.Generator] | None, batch: int
) -> list[torch.Generator]:
    """One generator for each row, out of one for all; or those that were given."""
    import torch

    if generator is None or isinstance(generator, torch.Generator):
        seeds = torch.randint(2**62, (batch,), generator=generator).tolist()
        return [torch.Generator().manual_seed(seed) for seed in seeds]
    if not isinstance(generator, Sequence):
        raise ArmdError("a generator is a torch.Generator().manual_seed(SEED), or one for each row")
    if len(generator) != batch:
        raise ArmdError(f"{len(generator)} generators do not fit {batch} rows; give one for each")
    return list(generator)
