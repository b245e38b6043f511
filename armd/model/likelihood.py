"""Likelihood: how probable a text is under an order, and under all orders."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt

import torch

from . import order as orders
from .errors import ArmdError
from .head import target_log_probs
from .modeling_armd import ArmdLM
from .order import Order
from .shapes import Float, Int, Tensor


def log_likelihood(model: ArmdLM, tokens: Int[Tensor, "b n"], order: Order) -> Float[Tensor, "b n"]:
    """log p of every token given the blocks before its own, in generation order, in one pass.
    Summed over a row it is the exact log-likelihood of that text in that order."""
    rows = model.hidden(tokens, order)
    position = order.rows(len(tokens)).position.to(tokens.device)
    target = tokens.gather(1, position.expand(tokens.shape))
    logp = target_log_probs(rows.flatten(0, 1), model.head_matrix(), target.flatten())
    return logp.view(tokens.shape)


def loss(
    model: ArmdLM,
    tokens: Int[Tensor, "b n"],
    order: Order,
    *,
    weight: Float[Tensor, "... n"] | None = None,
) -> Float[Tensor, ""]:
    """The training objective (eq. loss_diff_AR): the mean over tokens of -log p, gamma(t) constant;
    or the mean weighted with gamma of each token's block, from `schedule_weight`."""
    return model(tokens, order=order, labels=tokens, weight=weight).loss


def schedule_weight(order: Order, steps: int, schedule: str = "linear") -> Float[Tensor, "*b n"]:
    """gamma(t) of eq. VLoss_diff for every token of a masking order of `steps` steps:
    (alpha^(t-1) - alpha^t) / (1 - alpha^t), where block b undoes step t = steps - b."""
    if int(order.block.max()) >= steps:
        raise ArmdError(
            f"the order has {int(order.block.max()) + 1} blocks, more than {steps} steps make; "
            "give the steps it was drawn with"
        )
    alpha = orders.alpha(steps, schedule)
    gamma = (alpha[:-1] - alpha[1:]) / (1 - alpha[1:])
    return gamma.flip(0)[order.block.cpu()].float()


@dataclass(frozen=True)
class Estimate:
    """log p(x) from K random orders, one value a text, in nats."""

    mean: Float[Tensor, "b"]
    """Mean over orders: a lower bound of log p(x) on average (Jensen)."""
    standard_error: Float[Tensor, "b"]
    """Of that mean; zero if only one order was drawn."""
    log_mean_exp: Float[Tensor, "b"]
    """log of the mean probability: a tighter lower bound, exact as K grows."""


def any_order(
    model: ArmdLM,
    tokens: Int[Tensor, "b n"],
    *,
    draws: int,
    generator: torch.Generator | None = None,
    draw: Callable[..., Order] = orders.random,
) -> Estimate:
    """Estimate log p(x) where the order, too, is drawn: `draws` orders for each text."""
    if draws < 1:
        raise ArmdError(f"draws {draws} must be at least 1")
    batch, n = tokens.shape
    totals = []
    for _ in range(draws):
        order = orders.stack([draw(n, generator=generator) for _ in range(batch)])
        totals.append(log_likelihood(model, tokens, order).double().sum(1))
    total = torch.stack(totals)
    spread = total.std(0) / sqrt(draws) if draws > 1 else torch.zeros_like(total[0])
    return Estimate(total.mean(0), spread, total.logsumexp(0) - log(draws))
