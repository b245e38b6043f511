"""Small models, texts and orders that the laws are tried on."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

import armd
from armd.order import Order

KINDS = (
    "left to right",
    "shuffled",
    "random",
    "strided",
    "masking",
    "infill",
    "written down",
    "rows",
)


def order_of(kind: str, n: int, generator: torch.Generator, batch: int = 2) -> Order:
    """An order of that kind; streams, steps and what is known are drawn too."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    if kind == "left to right":
        return armd.order.left_to_right(n)
    if kind == "shuffled":
        return armd.order.shuffled(n, draw(0, n), generator=generator)
    if kind == "random":
        return armd.order.random(n, generator=generator)
    if kind == "strided":
        return armd.order.strided(n, draw(1, n))
    if kind == "masking":  # mostly more steps than tokens to fill: some blocks are empty
        schedule = ("linear", "cosine")[draw(0, 1)]
        return armd.order.masking(n, draw(1, 2 * n), schedule, generator=generator)
    if kind == "infill":
        known = torch.rand(n, generator=generator) < 0.5
        return armd.order.infill(known, streams=draw(1, max(1, int((~known).sum()))))
    if kind == "written down":
        block = torch.randint(0, 2 * n, (n,), generator=generator).sort().values
        return Order(torch.randperm(n, generator=generator), block)
    return armd.order.stack(
        [order_of(KINDS[draw(0, len(KINDS) - 2)], n, generator) for _ in range(batch)]
    )


@dataclass(frozen=True)
class Case:
    model: armd.ArmdLM
    tokens: torch.Tensor
    order: Order
    generator: torch.Generator


def case_of(kind: str, n: int, seed: int, *, double: bool = False, batch: int = 2, **size) -> Case:
    """A model with weights large enough for every part to matter, two texts and an order."""
    generator = torch.Generator().manual_seed(seed)
    options = {"vocab_size": 7, "d_model": 16, "n_layers": 3, "n_heads": 2} | size
    config = armd.ArmdConfig(**options, max_length=64, dropout=0.0)
    model = armd.ArmdLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            spread = 0.3 if weight.dim() > 1 else 0.1
            noise = torch.randn(weight.shape, generator=generator) * spread
            weight.copy_(noise if weight.dim() > 1 else 1 + noise)
    model = model.double() if double else model
    tokens = torch.randint(config.vocab_size, (batch, n), generator=generator)
    return Case(model, tokens, order_of(kind, n, generator, batch), generator)


EVERY = ("prefix", "mean", "neighbor")
"""Queries that know every order."""


@st.composite
def cases(draw: st.DrawFn, *, double: bool = False, queries: tuple[str, ...] = EVERY):
    """Random small configurations, orders and lengths."""
    layers = draw(st.integers(1, 4))
    heads = draw(st.sampled_from([1, 2]))
    return case_of(
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, 13)),
        draw(st.integers(0, 2**31)),
        double=double,
        n_layers=layers,
        n_two_stream=draw(st.integers(1, layers)),
        n_heads=heads,
        d_model=heads * draw(st.sampled_from([4, 6, 8])),
        d_pe=draw(st.integers(1, 6)),
        query=draw(st.sampled_from(queries)),
    )
