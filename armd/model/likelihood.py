"""Likelihood: how probable a text is under an order, and under all orders."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt

import torch

from . import order as orders
from .errors import ArmdError
from .modeling_armd import ArmdLM, token_ids
from .order import Order
from .shapes import Float, Int, Tensor


def log_likelihood(
    model: ArmdLM,
    tokens: Int[Tensor, "b n"],
    order: Order,
    *,
    attention_mask: Tensor | None = None,
) -> Float[Tensor, "b n"]:
    """log p of every token given the blocks before its own, in generation order, in one pass.
    Summed over a row it is the exact log-likelihood of that text in that order. Padding, where
    attention_mask is 0, on the left or on the right, has log p 0."""
    tokens = token_ids(tokens)
    rows = model.hidden(tokens, order, attention_mask)
    position = order.rows(len(tokens)).position.to(tokens.device)
    target = tokens.gather(1, position.expand(tokens.shape))
    logp = model.target_log_probs(rows.flatten(0, 1), target.flatten())
    logp = logp.view(tokens.shape)
    if attention_mask is None:
        return logp
    real = attention_mask.to(tokens.device).gather(1, position.expand(tokens.shape)) != 0
    return logp.where(real, 0)


def loss(
    model: ArmdLM,
    tokens: Int[Tensor, "b n"],
    order: Order,
    *,
    weight: Float[Tensor, "... n"] | None = None,
) -> Float[Tensor, ""]:
    """The training objective (eq. loss_diff_AR): the mean over tokens of -log p, gamma(t) constant;
    or the mean with weights of one's own."""
    return model(tokens, order=order, labels=tokens, weight=weight).loss


def schedule_weight(steps: int, schedule: str = "linear") -> Float[Tensor, "t"]:
    """gamma(t) of eq. VLoss_diff, t = 1..steps: (alpha^(t-1) - alpha^t) / (1 - alpha^t).

    It weighs the summed -log p of *all* tokens that are masked at step t, as the diffusion models
    of baselines/ draw them. A pass over a masking order predicts each token once, at the step that
    unmasks it; the mean over such orders is the same loss with weight 1."""
    alpha = orders.alpha(steps, schedule)
    return (alpha[:-1] - alpha[1:]) / (1 - alpha[1:])


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
    batch, n = token_ids(tokens).shape
    totals = []
    for _ in range(draws):
        order = orders.stack([draw(n, generator=generator) for _ in range(batch)])
        totals.append(log_likelihood(model, tokens, order).double().sum(1))
    total = torch.stack(totals)
    spread = total.std(0) / sqrt(draws) if draws > 1 else torch.zeros_like(total[0])
    return Estimate(total.mean(0), spread, total.logsumexp(0) - log(draws))
