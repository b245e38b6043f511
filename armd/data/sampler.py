"""Which windows does a step train on? Addressed by (seed, step) alone: nothing to save, and any
number of processes see the same batch.

Sample i = step * batch_size + row lies in epoch i // windows, at place i % windows of that epoch's
shuffle: a keyed permutation computed place by place, so that it needs no memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArmdError
from .dataset import Split

if TYPE_CHECKING:
    from ..model.shapes import Bool, Int, Tensor

ROUNDS = 6
MASK64 = (1 << 64) - 1


def mixed(number: int) -> int:
    """A 64-bit number that looks random (splitmix64's finish)."""
    number = (number + 0x9E3779B97F4A7C15) & MASK64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK64
    return number ^ (number >> 31)


def mixed_array(numbers: np.ndarray) -> np.ndarray:
    """`mixed`, without its first addition, of each entry."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def permuted(places: np.ndarray, count: int, *, seed: int, epoch: int) -> np.ndarray:
    """Where `places` (each below `count`) go in the shuffle of (seed, epoch): a bijection.

    A Feistel network permutes the numbers below the next power of two; one that lands at or above
    `count` is sent through again until it does not, which keeps the map one to one."""
    bits = max(2, (count - 1).bit_length())
    key = mixed(mixed(seed & MASK64) ^ (epoch & MASK64))
    keys = [np.uint64(mixed(key ^ turn)) for turn in range(ROUNDS)]
    result = places.astype(np.uint64)
    walking = np.ones(len(places), dtype=bool)
    while walking.any():
        result[walking] = feistel(result[walking], bits, keys)
        walking = result >= count
    return result.astype(np.int64)


def feistel(numbers: np.ndarray, bits: int, keys: list[np.uint64]) -> np.ndarray:
    """A permutation of the numbers of `bits` bits: each half in turn is changed by the other."""
    shift = np.uint64(bits // 2)
    low, high = np.uint64((1 << bits // 2) - 1), np.uint64((1 << (bits - bits // 2)) - 1)
    left, right = numbers >> shift, numbers & low
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ (mixed_array(right + first) & high)
        right = right ^ (mixed_array(left + second) & low)
    return (left << shift) | right


def windows_of(split: Split, length: int) -> int:
    """How many windows a pass over the split has; raises where there is none."""
    windows = split.windows(length)
    if windows == 0:
        where = f"{split.dataset.folder} {split.name}"
        raise ArmdError(f"{where}: {split.n_tokens} tokens are less than one window of {length}")
    return windows


def window_begins(split: Split, samples: np.ndarray, *, length: int, seed: int) -> np.ndarray:
    """Where in the token stream each sample begins. In packed data every epoch shifts all windows
    by an offset of its own, so that a token is not always at the same distance from a border."""
    windows = windows_of(split, length)
    begins = np.empty(len(samples), dtype=np.int64)
    epochs = samples // windows
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        places = permuted(samples[now] % windows, windows, seed=seed, epoch=epoch)
        packed = split.dataset.rows is None
        offset = mixed(mixed(~seed & MASK64) ^ epoch) % length if packed else 0
        begins[now] = places * length + offset
    return begins


def batch(
    split: Split,
    *,
    length: int,
    batch_size: int,
    seed: int,
    step: int,
    rows: range | None = None,
) -> tuple["Int[Tensor, 'r n']", "Bool[Tensor, 'r n']"]:
    """(tokens, scored) of a step; `rows` are those of the global batch that this process takes."""
    mine = np.arange(batch_size, dtype=np.int64)
    if rows is not None:
        mine = mine[rows.start : rows.stop : rows.step]
    begins = window_begins(split, step * batch_size + mine, length=length, seed=seed)
    return with_scored(split, split.gather(length, begins))


def with_scored(split: Split, tokens: np.ndarray) -> tuple["Tensor", "Tensor"]:
    import torch

    pad = split.dataset.pad
    scored = np.ones(tokens.shape, dtype=bool) if pad is None else tokens != pad
    return torch.from_numpy(tokens), torch.from_numpy(scored)


def heldout_batches(
    split: Split, *, length: int, batch_size: int
) -> Iterator[tuple["Int[Tensor, 'r n']", "Bool[Tensor, 'r n']"]]:
    """All tokens once, in order: full windows, then the tail, filled up with unscored EOS."""
    windows = split.windows(length)
    tail = split.tail(length)
    if windows == 0 and len(tail) == 0:
        raise ArmdError(
            f"{split.dataset.folder} has no {split.name} tokens; prepare with --heldout, or "
            "measure nothing with --validate-every 0"
        )
    for first in range(0, windows, batch_size):
        indices = np.arange(first, min(first + batch_size, windows), dtype=np.int64)
        yield with_scored(split, split.gather(length, indices * length))
    if len(tail):
        row = np.full((1, length), split.dataset.eos, dtype=np.int64)
        row[0, : len(tail)] = tail
        tokens, scored = with_scored(split, row)
        scored[:, len(tail) :] = False
        yield tokens, scored
