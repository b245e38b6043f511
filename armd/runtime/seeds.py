"""Seeds: a generator for every draw that has a name, such as (seed, number of the sample), so that
a sample is the same in any batch, on any rank, on any machine."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seeded(*words: int | str) -> torch.Generator:
    """A generator of its own for the draw that `words` name."""
    import torch

    digest = sha256(" ".join(map(str, words)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
