"""Orders: in which sequence, and in which blocks, the tokens of a text are generated.

A masking process is only an order of the positions, cut into blocks. Tokens of one block are drawn
together, given all earlier blocks. Left to right, any order, masked diffusion with T steps and
strided streams are all orders, and the model scores each of them in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import pi

import torch

from .errors import ArmdError
from .shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True, eq=False)
class Order:
    """position[k]: natural position of the k-th token generated (the paper's pi).
    block[k]: the block it is drawn in (the paper's B), never decreasing in k; numbers may be
    missing, because a step of a masking process may unmask nothing. Both (n,), or (batch, n)."""

    position: Int[Tensor, "*batch n"]
    block: Int[Tensor, "*batch n"]
    single_token_blocks: bool = field(init=False)
    """Every block holds one token: attention is then plainly triangular and needs no mask."""
    is_left_to_right: bool = field(init=False)
    """Left to right, one token a block."""

    def __post_init__(self) -> None:
        position, block = torch.as_tensor(self.position), torch.as_tensor(self.block)
        check(position, block)
        step = block[..., 1:] - block[..., :-1]
        singles = bool((step > 0).all())
        natural = torch.arange(position.shape[-1], device=position.device)
        self._set(
            position.long(), block.long(), singles, singles and bool((position == natural).all())
        )

    def _set(self, position: Tensor, block: Tensor, singles: bool, forward: bool) -> Order:
        for name, value in (
            ("position", position),
            ("block", block),
            ("single_token_blocks", singles),
            ("is_left_to_right", forward),
        ):
            object.__setattr__(self, name, value)
        return self

    def _like(self, position: Tensor, block: Tensor) -> Order:
        """The same order in another place or shape: nothing to check again, nothing to wait for."""
        return object.__new__(Order)._set(
            position, block, self.single_token_blocks, self.is_left_to_right
        )

    def __len__(self) -> int:
        return self.position.shape[-1]

    @property
    def singles(self) -> bool:
        """Old name of single_token_blocks."""
        return self.single_token_blocks

    @property
    def forward(self) -> bool:
        """Old name of is_left_to_right."""
        return self.is_left_to_right

    @property
    def batch(self) -> int | None:
        """How many rows it has, or None for one order that serves every row."""
        return self.position.shape[0] if self.position.dim() == 2 else None

    def to(self, device: torch.device | str) -> Order:
        move = {"device": device, "non_blocking": True}
        return self._like(self.position.to(**move), self.block.to(**move))

    def rows(self, batch: int) -> Order:
        """As (batch, n), one row a text; (1, n) if one order serves them all."""
        if self.batch is None:
            return self._like(self.position[None], self.block[None])
        if self.batch not in (1, batch):
            raise ArmdError(
                f"an order of {self.batch} rows does not fit {batch} texts; "
                "give one order, or one for each text"
            )
        return self

    def __getitem__(self, row: int) -> Order:
        if self.batch is None:
            raise ArmdError("this order has one row; index .position or .block for its tokens")
        return Order(self.position[row], self.block[row])

    def blocks(self) -> list[list[int]]:
        """The positions drawn together, block by block; for one row."""
        if self.batch is not None:
            raise ArmdError("blocks() shows one row; index the order first, as order[0].blocks()")
        _, counts = self.block.unique_consecutive(return_counts=True)
        return [part.tolist() for part in self.position.split(counts.tolist())]

    def inverse(self) -> Int[Tensor, "*batch n"]:
        """inverse[j]: when position j is generated. Puts rows in generation order back in place."""
        return self.position.argsort(-1)

    def __repr__(self) -> str:
        if self.batch is not None:
            return f"Order({self.batch} rows of {len(self)} tokens; first: {self[0]!r})"
        parts = [" ".join(map(str, part)) for part in self.blocks()]
        if len(parts) > 16:
            parts = [*parts[:12], "...", *parts[-2:]]
        return f"Order({len(self)} tokens in {len(self.blocks())} blocks: {' | '.join(parts)})"


def check(position: Tensor, block: Tensor) -> None:
    """Raise unless this is a permutation cut into blocks that never decrease."""
    if position.shape != block.shape or position.dim() not in (1, 2) or not position.numel():
        raise ArmdError(
            f"position {tuple(position.shape)} and block {tuple(block.shape)} must have one shape, "
            "(n,) or (batch, n), with n at least 1"
        )
    if position.is_floating_point() or block.is_floating_point():
        raise ArmdError("position and block must be integers; use .long()")
    n = position.shape[-1]
    if not bool((position.sort(-1).values == torch.arange(n, device=position.device)).all()):
        raise ArmdError(
            f"position is no permutation of 0..{n - 1}; name each position exactly once"
        )
    if bool((block < 0).any()) or bool((block[..., 1:] < block[..., :-1]).any()):
        raise ArmdError(
            "block must start at 0 or above and never decrease; list the tokens in the order in "
            "which their blocks are drawn"
        )


def stack(orders: Sequence[Order]) -> Order:
    """Orders of equal length as the rows of one."""
    if len({len(order) for order in orders}) != 1:
        raise ArmdError("only orders of one length stack; give at least one, and pad the shorter")
    rows = [order.rows(1) for order in orders]
    position, block = (torch.cat([getattr(o, f) for o in rows]) for f in ("position", "block"))
    flags = (all(o.single_token_blocks for o in rows), all(o.is_left_to_right for o in rows))
    return object.__new__(Order)._set(position, block, *flags)


def left_to_right(n: int) -> Order:
    """One token at a time, as a GPT reads."""
    return _one_by_one(torch.arange(_length(n)))


def random(n: int, *, generator: torch.Generator | None = None) -> Order:
    """One token at a time, every order equally likely."""
    return _one_by_one(torch.randperm(_length(n), generator=generator))


def shuffled(
    n: int, rho: int, *, how: str = "among", generator: torch.Generator | None = None
) -> Order:
    """Left to right, but for `rho` tokens, chosen at random: shuffled among their own places (how
    "among"), or each moved to a place of its own, anywhere (how "move")."""
    if not 0 <= rho <= _length(n):
        raise ArmdError(f"rho {rho} must be between 0 and the {n} tokens there are to shuffle")
    chosen = torch.randperm(n, generator=generator)[:rho]
    return _one_by_one(taken_out_of_turn(n, chosen, how, generator))


def taken_out_of_turn(
    n: int, chosen: Int[Tensor, "rho"], how: str, generator: torch.Generator | None
) -> Int[Tensor, "n"]:
    """The positions 0..n-1, the chosen ones elsewhere, the others in their order."""
    if how not in ("among", "move"):
        raise ArmdError(f"no way to shuffle '{how}'; use 'among' or 'move'")
    position, count = torch.arange(n), len(chosen)
    if how == "among":
        position[chosen] = chosen[torch.randperm(count, generator=generator)]
        return position
    if count == 1 < n:  # a single token leaves its place
        slots = (chosen + torch.randint(1, n, (1,), generator=generator)) % n
    else:
        slots = torch.randperm(n, generator=generator)[:count]
    stays, free = torch.ones(2, n, dtype=torch.bool)
    stays[chosen], free[slots] = False, False
    position[free], position[slots] = stays.nonzero().flatten(), chosen
    return position


def strided(n: int, streams: int) -> Order:
    """`streams` runs of the text written side by side: their first tokens one by one, then one
    token of each run in every block. Where n does not divide, the first runs are one longer."""
    if not 1 <= streams <= _length(n):
        raise ArmdError(f"streams {streams} must be between 1 and the {n} tokens to generate")
    sizes = [n // streams + (run < n % streams) for run in range(streams)]
    run = torch.arange(streams).repeat_interleave(torch.tensor(sizes))
    depth = torch.cat([torch.arange(size) for size in sizes])
    # heads (depth 0) are blocks 0..S-1, one by one; depth j > 0 is block S-1+j
    block, position = torch.where(depth == 0, run, streams - 1 + depth).sort(stable=True)
    return Order(position, block)


def masking(
    n: int, steps: int, schedule: str = "linear", *, generator: torch.Generator | None = None
) -> Order:
    """A draw of the absorbing process in `steps` steps: what was masked last is generated first."""
    kept = alpha(steps, schedule)
    u = torch.rand(_length(n), dtype=torch.float64, generator=generator)
    # tau = t for alpha^(t-1) > u >= alpha^t, so that P(tau > t) = alpha^t; block = steps - tau
    unmasked = torch.searchsorted(kept[1:].flip(0), u, right=True) - 1
    block, position = unmasked.sort(stable=True)
    return Order(position, block)


def alpha(steps: int, schedule: str = "linear") -> Float[Tensor, "t"]:
    """alpha^t for t = 0..steps: the chance that a token is still unmasked after t steps."""
    if steps < 1:
        raise ArmdError(f"a masking process needs at least 1 step, not {steps}")
    time = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    if schedule == "linear":
        kept = 1 - time
    elif schedule == "cosine":
        kept = torch.cos(time * pi / 2)
    else:
        raise ArmdError(f"no noise schedule '{schedule}'; use 'linear' or 'cosine'")
    kept[-1] = 0.0
    return kept


def spelled(kind: str) -> str:
    """The name of an order as `named` knows it: "left-to-right" and "left to right" are
    "left_to_right"."""
    return kind.strip().lower().replace("-", "_").replace(" ", "_")


def named(
    kind: str,
    n: int,
    *,
    streams: int = 1,
    steps: int = 1,
    rho: int = 0,
    how: str = "among",
    schedule: str = "linear",
    known: Bool[Tensor, "n"] | None = None,
    generator: torch.Generator | None = None,
) -> Order:
    """The order of that name; each takes what it needs of the other arguments."""
    kinds = {
        "left_to_right": lambda: left_to_right(n),
        "strided": lambda: strided(n, streams),
        "random": lambda: random(n, generator=generator),
        "shuffled": lambda: shuffled(n, rho, how=how, generator=generator),
        "masking": lambda: masking(n, steps, schedule, generator=generator),
        "infill": lambda: infill(torch.zeros(n).bool() if known is None else known, streams),
    }
    if spelled(kind) not in kinds:
        raise ArmdError(f"no order '{kind}'; use one of {', '.join(kinds)}")
    return kinds[spelled(kind)]()


def infill(known: Bool[Tensor, "*batch n"], streams: int = 1) -> Order:
    """What is known first, left to right, then the blanks, in `streams` strided runs."""
    known = torch.as_tensor(known)
    if known.dtype != torch.bool or known.dim() not in (1, 2):
        raise ArmdError(
            "known must be a bool tensor, (n,) or (batch, n): True where a token is given"
        )
    if known.dim() == 2:
        return stack([infill(row, streams) for row in known])
    blanks = int((~known).sum())
    return completing(known, strided(blanks, streams)) if blanks else left_to_right(len(known))


def completing(known: Bool[Tensor, "n"], blanks: Order) -> Order:
    """What is known first, left to right, then the blanks in an order of their own."""
    given, blank = known.nonzero().flatten(), (~known).nonzero().flatten()
    if blanks.batch is not None or len(blanks) != len(blank):
        raise ArmdError(f"give one order of the {len(blank)} blanks, not {blanks!r}")
    block = torch.cat([torch.arange(len(given)), len(given) + blanks.block])
    position = torch.cat([given, blank[blanks.position]])
    natural = torch.arange(len(known), device=position.device)
    forward = blanks.is_left_to_right and bool((position == natural).all())
    return object.__new__(Order)._set(position, block, blanks.single_token_blocks, forward)


def _length(n: int) -> int:
    if n < 1:
        raise ArmdError(f"an order needs at least one token, not {n}")
    return n


def _one_by_one(position: Tensor) -> Order:
    return Order(position, torch.arange(len(position)))


kept = alpha  # its old name
