"""How well are blanks filled where one of several candidates is kept? At least so well."""

from math import log
from typing import Any

import torch

from ..infilling import Filling, blanks_of
from ..model.modeling_armd import ArmdLM
from ..model.sampling import Sampling
from ..model.shapes import Bool, Float, Int, Tensor
from ..runtime.progress import progress
from ..runtime.seeds import seeded
from .infill_scores import fill_blanks


def least_log_p(
    model: ArmdLM,
    tokens: Int[Tensor, "n"],
    blank: Bool[Tensor, "n"],
    *,
    candidates: int,
    generator: torch.Generator,
) -> list[float]:
    """Of each run of blanks, a number that on average is at most the log-probability with which
    infill, with K candidates, draws the text itself, all before it being true.

    A fill B is drawn with probability K q(B) E[w(B) / (w(B) + weights of K - 1 others)], where q is
    what candidates are drawn from. The mean of a logarithm is at most the logarithm of the mean."""
    filling, found = Filling(model, tokens.tolist(), (~blank).tolist()), []
    for run in filling.blanks:
        true = tokens[run.start : run.end].tolist()
        options = {"sampling": Sampling(), "generator": generator, "given": true}
        made = filling.draw(run, candidates, **options)
        share = made.weight.log_softmax(0)[-1]
        found.append((made.drawn[-1] + share).item() + log(candidates))
        filling.keep(run, true)
    return found


def gained(
    model: ArmdLM, fast: ArmdLM, rows: list[list[int]], blank: Bool[Tensor, "b n"], **options: Any
) -> dict[str, Any]:
    """Nats a token that candidates gain over the left side alone, and the error of that mean, from
    its spread over the runs of blanks. `fast` is the model packed; options: candidates, seed."""
    count, seed, gain, size = options["candidates"], options["seed"], [], []
    with progress("candidates", len(rows), lines=True) as report:
        for number, (row, hidden) in enumerate(zip(torch.tensor(rows), blank, strict=True)):
            generator = seeded(seed, number, "candidates")
            least = least_log_p(fast, row, hidden, candidates=count, generator=generator)
            one = (row[None].to(model.device), hidden[None].to(model.device))
            left = fill_blanks(model, *one, full=False).log_p.double().cpu()
            runs = [run.end - run.start for run in blanks_of((~hidden).tolist())]
            gain += [b - own.sum().item() for b, own in zip(least, left.split(runs), strict=True)]
            size += runs
            report(number + 1, f"{number + 1} of {len(rows)} windows")
    return {"count": count, **_mean_and_error(torch.tensor(gain), torch.tensor(size))}


def _mean_and_error(gain: Float[Tensor, "k"], size: Int[Tensor, "k"]) -> dict[str, float]:
    mean = gain.sum() / size.sum()
    spread = (gain - mean * size).square().sum().sqrt()
    return {"nats_gained": mean.item(), "error": (spread / size.sum()).item()}
