"""Sampling: from logits to tokens, in float64 throughout.

Float32 noise quietly lowers the temperature: its rarest draws do not exist. Here one uniform number
a token, in float64, is looked up in the float64 cumulative sum of the probabilities.
"""

from dataclasses import dataclass

import torch

from .errors import ArmdError
from .shapes import Bool, Float, Int, Tensor

NOT_FINITE = "logits contain NaN or inf: the checkpoint is damaged, or training diverged"


@dataclass(frozen=True)
class Sampling:
    """How to choose a token from the model's distribution."""

    temperature: float = 1.0
    """Below 1 sharper, above 1 flatter; 0 always takes the most probable token."""
    top_k: int | None = None
    """Only the k most probable tokens."""
    top_p: float | None = None
    """Only the smallest set of most probable tokens that holds this much probability."""
    min_p: float | None = None
    """Only tokens at least this share as probable as the most probable one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that the text already has become less probable."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ArmdError(f"temperature {self.temperature} must be a finite number of 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ArmdError(f"top_k {self.top_k} must be at least 1")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ArmdError(f"{name} {value} must be above 0 and at most 1")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise ArmdError(f"repetition_penalty {self.repetition_penalty} must be 0.01 to 100")
        if self.temperature == 0 and self.filters:
            raise ArmdError(
                "temperature 0 takes the most probable token, so top_k, top_p and min_p would do "
                "nothing; leave them out, or raise the temperature"
            )

    @property
    def filters(self) -> bool:
        return any(value is not None for value in (self.top_k, self.top_p, self.min_p))


def draw(
    logits: Float[Tensor, "b m v"],
    uniform: Float[Tensor, "b m"],
    sampling: Sampling,
    seen: Bool[Tensor, "b v"] | None = None,
    given: Int[Tensor, "b m"] | None = None,
) -> tuple[Int[Tensor, "b m"], Float[Tensor, "b m"]]:
    """A token for each row, and its log-probability under the model itself (whatever the
    temperature). `uniform` holds one float64 number in [0, 1) a token. `seen` marks the tokens
    a row has already, `given` is a token that must be taken, or -1."""
    # MPS knows no float64: there numbers stay on the CPU
    scores = (logits.cpu() if logits.device.type == "mps" else logits).double()
    uniform = uniform.to(scores.device)
    top = scores.amax(-1, keepdim=True)
    mass = (scores - top).exp_()
    total = mass.sum(-1)
    if scores.is_cpu and not bool(total.isfinite().all()):  # elsewhere this would wait
        raise ArmdError(NOT_FINITE)
    if sampling.temperature == 0:
        token = penalised(scores, sampling, seen).argmax(-1)
    elif sampling == Sampling():
        token = invert(mass.cumsum(-1), uniform)
    else:
        token = invert(weights(penalised(scores, sampling, seen), sampling).cumsum(-1), uniform)
    if given is not None:
        token = given.to(token.device).where(given.to(token.device) >= 0, token)
    at_token = (scores - top).gather(-1, token[..., None]).squeeze(-1)
    return token.to(logits.device), at_token - total.log()


def invert(cumulative: Float[Tensor, "*b v"], uniform: Float[Tensor, "*b"]) -> Int[Tensor, "*b"]:
    """The first token whose cumulative weight exceeds uniform * total. A token of weight 0 is never
    it, and one of any weight can be."""
    total = cumulative[..., -1]
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[..., None], right=True).squeeze(-1)


def penalised(scores: Tensor, sampling: Sampling, seen: Tensor | None) -> Tensor:
    if sampling.repetition_penalty == 1.0 or seen is None:
        return scores
    rate = sampling.repetition_penalty
    lower = torch.where(scores > 0, scores / rate, scores * rate)
    return torch.where(seen[:, None].to(scores.device), lower, scores)


def weights(scores: Float[Tensor, "*b v"], sampling: Sampling) -> Float[Tensor, "*b v"]:
    """Unnormalised probabilities after temperature and filters, each applied to the one before."""
    weight = ((scores - scores.amax(-1, keepdim=True)) / sampling.temperature).exp()
    if sampling.top_k is not None and sampling.top_k < weight.shape[-1]:
        most, index = weight.topk(sampling.top_k, -1)
        weight = torch.zeros_like(weight).scatter(-1, index, most)
    if sampling.top_p is not None:
        ranked, index = weight.sort(-1, descending=True)
        # a token stays if those before it do not hold top_p already; the first always does
        before = ranked.cumsum(-1) - ranked
        ranked = ranked.where(before < sampling.top_p * ranked.sum(-1, keepdim=True), 0)
        weight = torch.zeros_like(weight).scatter(-1, index, ranked)
    if sampling.min_p is not None:
        weight = weight.where(weight >= sampling.min_p * weight.amax(-1, keepdim=True), 0)
    return weight
