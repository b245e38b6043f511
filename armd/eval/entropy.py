"""Unigram entropy of samples, and the temperature that gives them one.

The paper compares samplers at equal entropy, because a sharper sampler always looks better to a
judge. Entropies are in bits: 1024 tokens have at most 10."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import ArmdError
from ..generation.api import generate
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Int, Tensor
from ..runtime.seeds import seeded

Written = Callable[[float], Sequence[Any]]


def mean_entropy(rows: Sequence[Sequence[int]]) -> float:
    """Bits, the mean over sequences of any lengths."""
    found = [float(_entropy(torch.as_tensor(row))) for row in rows if len(row)]
    return sum(found) / max(1, len(found))


def _entropy(row: Int[Tensor, "n"]) -> Float[Tensor, ""]:
    count = row.unique(return_counts=True)[1].double()
    share = count / count.sum()
    return 0 - (share * share.log2()).sum()  # 0 -, not -: one token alone has 0 bits, not -0


def search_temperature(
    written: Written,
    bits: float,
    *,
    tolerance: float = 0.02,
    low: float = 0.1,
    high: float = 4.0,
    halvings: int = 20,
) -> float:
    """The temperature at which `written(temperature)`, sequences of token ids, have a mean entropy
    of `bits`. It must draw them from the same seeds each time: then the entropy moves with the
    temperature, not with luck, and halving finds it."""
    least, most = (mean_entropy(written(end)) for end in (low, high))
    if not least - tolerance <= bits <= most + tolerance:
        raise ArmdError(
            f"an entropy of {bits:g} bits is out of reach: temperatures from {low:g} to {high:g} "
            f"give {least:.2f} to {most:.2f}; ask for one between, or for longer texts"
        )
    tried = [(abs(least - bits), low), (abs(most - bits), high)]
    while min(tried)[0] > tolerance and len(tried) < halvings + 2:
        middle = (low + high) / 2
        found = mean_entropy(written(middle))
        tried.append((abs(found - bits), middle))
        low, high = (middle, high) if found < bits else (low, middle)
    error, temperature = min(tried)
    if error > tolerance:
        raise ArmdError(
            f"no temperature gives {bits:g} bits to within {tolerance:g} (nearest: "
            f"{temperature:.4f}, off by {error:.3f}); match over more or longer samples"
        )
    return temperature


def match_temperature(
    model: ArmdLM,
    bits: float,
    *,
    length: int,
    count: int = 16,
    streams: int = 1,
    seed: int = 0,
    tolerance: float = 0.02,
    **sampling: Any,
) -> float:
    """The temperature at which `count` free texts of `length` tokens have that mean entropy."""

    def written(temperature: float) -> list[list[int]]:
        return generate(
            model,
            length=length,
            prompt=[[] for _ in range(count)],
            streams=streams,
            temperature=temperature,
            generator=[seeded(seed, index) for index in range(count)],
            **sampling,
        ).tolist()

    return search_temperature(written, bits, tolerance=tolerance)
