"""The curriculum: which order each text is learnt in. Everything follows from (seed, step, row), so
a run has no state to save here, and any number of processes sees the same orders."""

from dataclasses import dataclass

import torch

from ..model import order as orders
from ..model.order import Order
from ..model.shapes import Bool, Int, Tensor
from ..runtime.seeds import seed_of
from .recipe import Curriculum


@dataclass(frozen=True)
class Stage:
    """What a step teaches: `amount` is rho, S, the masking steps or the longest span, whichever
    `kind` has."""

    kind: str
    """shuffled, strided, random, masking or infill"""
    amount: int = 0
    shuffle: str = Curriculum.shuffle
    rho_of: str = Curriculum.rho_of
    prompt: float = 0.0
    """Share of the text that is known before its streams begin."""
    known: float = Curriculum.infill_known
    filled: str = Curriculum.infill_order

    def __str__(self) -> str:
        names = {"shuffled": "rho", "strided": "S", "masking": "T"}
        return f"{names[self.kind]} {self.amount}" if self.kind in names else self.kind


def rho(curriculum: Curriculum, step: int) -> int:
    """How many places are shuffled: none until i_AR, then linearly from 1 to the most at i_perm."""
    c = curriculum
    if step < c.i_ar:
        return 0
    if step >= c.i_perm:
        return c.rho
    return min(c.rho, 1 + (c.rho - 1) * (step - c.i_ar) // (c.i_perm - c.i_ar))


def stage(curriculum: Curriculum, *, seed: int, step: int) -> Stage:
    """What `step` (counted from 0) teaches, the same for every row of its batch."""
    c = curriculum
    generator = torch.Generator().manual_seed(seed_of(seed, step, "stage"))
    draw = float(torch.rand((), generator=generator, dtype=torch.float64))
    for kind, share, amount in (
        ("random", c.p_random, 0),
        ("masking", c.p_masking, c.masking_steps),
        ("infill", c.p_infill, c.infill_span),
    ):
        if draw < share:
            return Stage(kind, amount, known=c.infill_known, filled=c.infill_order)
        draw -= share
    if step < c.steps:
        return Stage("shuffled", rho(c, step), c.shuffle, c.rho_of)
    choice = int(torch.randint(len(c.streams), (), generator=generator))
    prompt = 0.0
    if c.p_prompt:
        drawn, size = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        prompt = size / 2 if drawn < c.p_prompt else 0.0
    return Stage("strided", c.streams[choice], prompt=prompt)


def orders_of(
    now: Stage, *, seed: int, step: int, rows: range, scored: Bool[Tensor, "b n"]
) -> Order:
    """The orders of these rows of the batch. Tokens that are not scored (pads) come last, one by
    one, so that no real token sees them."""
    n = scored.shape[1]
    real = [n] * len(rows) if bool(scored.all()) else _real_lengths(scored)
    plain = now.kind == "shuffled" and not now.amount
    if min(real) == n and (now.kind == "strided" or plain):
        return _strided(n, now) if now.amount else orders.left_to_right(n)
    generator = torch.Generator()
    position = torch.arange(n).repeat(len(rows), 1)
    block = position.clone()
    for index, (row, length) in enumerate(zip(rows, real, strict=True)):
        generator.manual_seed(seed_of(seed, step, row))
        _fill(now, position[index], block[index], length, generator)
    return Order(position, block)


def _real_lengths(scored: Bool[Tensor, "b n"]) -> list[int]:
    """Where each row's pads begin."""
    place = torch.arange(1, scored.shape[1] + 1)
    return (scored * place).amax(1).tolist()


def _fill(
    now: Stage,
    position: Int[Tensor, "n"],
    block: Int[Tensor, "n"],
    length: int,
    generator: torch.Generator,
) -> None:
    """Write one row's order over its first `length` tokens, in place; the pads stay behind them."""
    if not length:
        return
    if now.kind == "shuffled":  # as order.shuffled, without its checks
        slots = len(position) if now.rho_of == "window" else length
        chosen = torch.randperm(slots, generator=generator)[: now.amount]
        chosen = chosen[chosen < length]  # those that fall on pads do nothing
        position[:length] = orders.taken_out_of_turn(length, chosen, now.shuffle, generator)
        return
    if now.kind == "random":
        position[:length] = torch.randperm(length, generator=generator)
        return
    if now.kind == "masking":
        order = orders.masking(length, now.amount, generator=generator)
    elif now.kind == "strided":
        order = _strided(length, now)
    else:
        order = _infill(now, length, generator)
    position[:length], block[:length] = order.position, order.block
    block[length:] += int(order.block[-1]) + 1


def _strided(n: int, now: Stage) -> Order:
    """The streams of a text, after its prompt if it has one."""
    prompt = int(now.prompt * n)
    streams = min(now.amount, n - prompt)
    if not prompt:
        return orders.strided(n, streams)
    return orders.infill(torch.arange(n) < prompt, streams)


def _infill(now: Stage, n: int, generator: torch.Generator) -> Order:
    """What is known, then the blanks: the leftmost first, or span by span in any order."""
    if not now.amount:
        return orders.infill(blanks(n, generator))
    known = spans(n, generator, most=now.amount, share=now.known)
    if now.filled == "forward" or bool(known.all()):
        return orders.infill(known)
    blank = (~known).nonzero().flatten()
    span = (blank.diff() > 1).cumsum(0)
    span = torch.cat([span.new_zeros(1), span])
    turn = torch.randperm(int(span[-1]) + 1, generator=generator)[span]
    position = turn.argsort(stable=True)
    return orders.completing(known, Order(position, torch.arange(len(position))))


def blanks(n: int, generator: torch.Generator) -> Bool[Tensor, "n"]:
    """What is known in a text to fill in: half of the time one gap of any length at any place,
    otherwise each token with a chance that is itself drawn."""
    draw = torch.rand(4, generator=generator)
    if draw[0] < 0.5:
        size = 1 + int(draw[1] * n)
        start = int(draw[2] * (n - size + 1))
        place = torch.arange(n)
        return (place < start) | (place >= start + size)
    known = torch.rand(n, generator=generator) < draw[1]
    known[int(draw[3] * n)] = False
    return known


def spans(
    n: int, generator: torch.Generator, *, most: int, share: float = Curriculum.infill_known
) -> Bool[Tensor, "n"]:
    """The same, where each blank is a span of 1 to `most` tokens, and of the text about `share` is
    known. The first has known text on both sides, if the text is not too short for that."""
    lengths = torch.randint(1, most + 1, (n,), generator=generator)
    between = torch.randint(1, max(2, round(most * share / (1 - share))), (n,), generator=generator)
    lengths[0] = lengths[0].clamp(max=max(1, n - 2))
    between[0] = (between[0] - 1) % max(1, n - 1 - int(lengths[0])) + 1 if n > 1 else 0
    runs = torch.stack([between, lengths], 1).flatten()
    return (torch.arange(len(runs)) % 2 == 0).repeat_interleave(runs)[:n]
