"""Who gives the probabilities: one face for our model, its baselines and any causal LM."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn

from ..baselines.base import Baseline
from ..errors import ArmdError
from ..model.head import target_log_probs
from ..model.likelihood import log_likelihood
from ..model.modeling_armd import ArmdLM
from ..model.order import Order, left_to_right
from ..model.shapes import Bool, Float, Int, Tensor

FEW, MANY = 32, 512


class Scorer(Protocol):
    """What an evaluation asks of a model. A baseline that only bounds its likelihood says so."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def any_order(self) -> bool:
        """It knows other orders than left to right."""
        ...

    @property
    def figure(self) -> str:
        """What its values are: "exact" log p, a "bound" (a lower one), or a "pseudo-likelihood"."""
        ...

    @property
    def drawn(self) -> bool:
        """Its values are draws: of a bound, or of a pseudo-likelihood."""
        ...

    @property
    def from_nothing(self) -> bool:
        """It scores a window's first token although that is a BOS: its own start is another."""
        ...

    @property
    def scores_first(self) -> bool:
        """It can score the first token of a text at all."""
        ...

    def log_probs(
        self, tokens: Int[Tensor, "b n"], order: Order | None, skip: int
    ) -> Float[Tensor, "b n"]:
        """log p of each token, in natural order; the first `skip` of a row are context alone.
        Without an order, left to right."""
        ...


@dataclass(frozen=True)
class OurScorer:
    """What our model and the baselines in its layers have in common: a start of their own."""

    model: ArmdLM | Baseline
    from_nothing = True
    scores_first = True

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def max_length(self) -> int:
        return self.model.config.max_length

    @property
    def device(self) -> torch.device:
        return self.model.device


@dataclass(frozen=True)
class ArmdScorer(OurScorer):
    """Our model, under any order, in one pass."""

    model: ArmdLM
    figure = "exact"
    drawn = False

    @property
    def any_order(self) -> bool:
        return self.model.any_order

    def log_probs(self, tokens: Tensor, order: Order | None, skip: int) -> Tensor:
        order = left_to_right(tokens.shape[1]) if order is None else order
        found = as_numbers(log_likelihood(self.model, tokens, order))
        inverse = order.rows(len(tokens)).to(tokens.device).inverse()
        return found.gather(1, inverse.expand(found.shape))


@dataclass(frozen=True)
class BaselineScorer(OurScorer):
    """A baseline that gives one figure for a whole row, most of them in draws of their noise."""

    model: Baseline
    any_order = False

    @property
    def figure(self) -> str:
        return self.model.figure

    @property
    def drawn(self) -> bool:
        return self.figure != "exact"

    def log_probs(self, tokens: Tensor, order: Order | None, skip: int) -> Tensor:
        raise ArmdError(
            f"{self.model.config.model} gives one figure for a whole text ({self.figure}); "
            "score it with armd eval ppl"
        )

    def row_log_probs(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"], generator: torch.Generator
    ) -> Float[Tensor, "b"]:
        """One draw of the figure for each row's scored tokens: of the bound on log p, mostly."""
        return as_numbers(-self.model.nll(tokens, scored, generator).double())


@dataclass(frozen=True)
class CausalScorer:
    """A Hugging Face causal LM. A text's first token is scored given BOS, if there is one."""

    model: Any
    bos: int | None
    any_order = False
    figure = "exact"
    drawn = False
    from_nothing = False

    @property
    def scores_first(self) -> bool:
        return self.bos is not None

    @property
    def vocab_size(self) -> int:
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def max_length(self) -> int:
        return getattr(self.model.config, "max_position_embeddings", None) or 1 << 30

    @property
    def device(self) -> torch.device:
        return self.model.device

    def log_probs(self, tokens: Tensor, order: Order | None, skip: int) -> Tensor:
        if order is not None and not order.is_left_to_right:
            raise ArmdError("this model is autoregressive; score it with --order left-to-right")
        if skip == 0 and self.bos is not None:
            start = tokens.new_full((len(tokens), 1), self.bos)
            return self._next(torch.cat([start, tokens[:, :-1]], 1), tokens)
        unscored = torch.zeros(len(tokens), 1, device=tokens.device)
        if tokens.shape[1] == 1:
            return unscored
        return torch.cat([unscored, self._next(tokens[:, :-1], tokens[:, 1:])], 1)

    def _next(self, seen: Int[Tensor, "b n"], target: Int[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        if self.head is None:
            return as_numbers(picked(self.model(seen, use_cache=False).logits, target))
        rows = self.model.base_model(seen, use_cache=False)[0]
        found = target_log_probs(rows.flatten(0, 1), self.head, target.flatten())
        return as_numbers(found.view(target.shape))

    @cached_property
    def head(self) -> Float[Tensor, "v d"] | None:
        """The matrix that makes logits of the last rows, so that they never stand in memory all at
        once; None where the head does more (a bias, a scale, a cap), which a few tokens show."""
        head, body = self.model.get_output_embeddings(), self.model.base_model
        if not isinstance(head, nn.Linear) or head.bias is not None or body is self.model:
            return None
        some = torch.arange(min(8, self.max_length), device=self.device)[None] % self.vocab_size
        with torch.inference_mode():
            rows, logits = body(some, use_cache=False)[0], self.model(some, use_cache=False).logits
            if rows.shape[-1] != head.in_features:
                return None
            return head.weight if torch.equal(head(rows), logits) else None


def as_numbers(log_p: Tensor) -> Tensor:
    """The same; raises for a model that gives no numbers. Of answers, none of which is more
    probable, the first would seem the best."""
    if bool(log_p.isnan().any()):
        raise ArmdError("log-probabilities are no numbers; is the model damaged? armd verify it")
    return log_p


def picked(logits: Float[Tensor, "b n v"], target: Int[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """log softmax at the targets, a few rows at a time on a CPU, where they then stay in the
    cache: 0.20 s against 0.54 s for 2048 rows of 50,257, timed once on two cores."""
    rows, wanted = logits.flatten(0, 1), target.flatten()
    few = FEW if logits.device.type == "cpu" else MANY
    parts = [
        -nn.functional.cross_entropy(part.float(), at, reduction="none")
        for part, at in zip(rows.split(few), wanted.split(few), strict=True)
    ]
    return torch.cat(parts).view(target.shape)
