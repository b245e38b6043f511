"""Blanks filled greedily, and how near each filling is to what stood there: ROUGE-L and exact."""

from itertools import pairwise
from typing import Any

import torch

from ..generation.api import generate
from ..infilling import infill
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Bool, Int, Tensor


def rouge_l(found: list[int], wanted: list[int]) -> float:
    """F1 of the longest common subsequence, over tokens."""
    longest = [0] * (len(wanted) + 1)
    for token in found:
        before = 0
        for at, other in enumerate(wanted, 1):
            here = longest[at]
            longest[at] = before + 1 if token == other else max(here, longest[at - 1])
            before = here
    return 2 * longest[-1] / max(1, len(found) + len(wanted))


def spans_of(blank: Bool[Tensor, "n"]) -> list[tuple[int, int]]:
    """Where each run of blanks begins and ends."""
    edges = torch.nn.functional.pad(blank.int(), (1, 1)).diff().nonzero().flatten().tolist()
    return list(pairwise(edges))[::2]


def fill_greedily(
    model: ArmdLM, tokens: Int[Tensor, "b n"], blank: Bool[Tensor, "b n"]
) -> dict[str, dict[str, float]]:
    """Every run of blanks, taken as the model fills it with everything else known, and as it goes
    on from the true text on its left."""
    near: dict[str, list[float]] = {"left": [], "both": []}
    equal: dict[str, list[bool]] = {"left": [], "both": []}
    for row, hidden in zip(tokens, blank, strict=True):
        whole = infill(model, row[None], ~hidden, temperature=0.0)[0]
        for start, end in spans_of(hidden):
            given = [row[:start].tolist()] if start else None
            left = generate(model, prompt=given, length=end, temperature=0.0)[0]
            wanted = row[start:end].tolist()
            for name, text in (("left", left), ("both", whole)):
                found = text[start:end].tolist()
                near[name].append(rouge_l(found, wanted))
                equal[name].append(found == wanted)
    return {name: _means(near[name], equal[name]) for name in near}


def _means(near: list[float], equal: list[bool]) -> dict[str, Any]:
    count = max(1, len(near))
    return {"fills": len(near), "rouge_l": sum(near) / count, "exact_fills": sum(equal) / count}
