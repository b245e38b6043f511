"""Who gives the probabilities: one face for our model, its baselines and any causal LM."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import ArmdError
from ..likelihood import log_likelihood
from ..modeling_armd import ArmdLM
from ..order import Order, left_to_right
from ..shapes import Float, Int, Tensor

CHUNK = 512


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
    def bound(self) -> bool:
        """Its values are lower bounds of log p, not log p."""
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
class ArmdScorer:
    """Our model, under any order, in one pass."""

    model: ArmdLM
    bound = False
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

    @property
    def any_order(self) -> bool:
        return self.model.config.query != "shift"

    def log_probs(self, tokens: Tensor, order: Order | None, skip: int) -> Tensor:
        if order is None:
            return log_likelihood(self.model, tokens, left_to_right(tokens.shape[1]))
        found = log_likelihood(self.model, tokens, order)
        inverse = order.rows(len(tokens)).inverse().to(found.device)
        return found.gather(1, inverse.expand(found.shape))


@dataclass(frozen=True)
class CausalScorer:
    """A Hugging Face causal LM. A text's first token is scored given BOS, if there is one."""

    model: Any
    bos: int | None
    any_order = False
    bound = False
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
        if order is not None and not order.forward:
            raise ArmdError("this model is autoregressive; score it with --order left-to-right")
        if skip == 0 and self.bos is not None:
            start = tokens.new_full((len(tokens), 1), self.bos)
            logits = self.model(torch.cat([start, tokens[:, :-1]], 1), use_cache=False).logits
            return picked(logits, tokens)
        unscored = torch.zeros(len(tokens), 1, device=tokens.device)
        if tokens.shape[1] == 1:
            return unscored
        logits = self.model(tokens[:, :-1], use_cache=False).logits
        return torch.cat([unscored, picked(logits, tokens[:, 1:])], 1)


def picked(logits: Float[Tensor, "b n v"], target: Int[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """log softmax at the targets, by chunks: never a second tensor as large as the logits."""
    rows, wanted = logits.flatten(0, 1), target.flatten()
    parts = [
        part.gather(1, at[:, None]).squeeze(1).float() - part.float().logsumexp(1)
        for part, at in zip(rows.split(CHUNK), wanted.split(CHUNK), strict=True)
    ]
    return torch.cat(parts).view(target.shape)
