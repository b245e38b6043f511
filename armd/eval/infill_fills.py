"""Blanks filled, and how near each filling is to what stood there: ROUGE-L and exact."""

from ..generation.api import generate
from ..infilling import blanks_of, infill
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Bool, Int, Tensor
from ..runtime.seeds import seeded


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


def fill_greedily(
    model: ArmdLM, tokens: Int[Tensor, "b n"], blank: Bool[Tensor, "b n"]
) -> dict[str, dict[str, float]]:
    """Every run of blanks, taken as the model fills it with everything else known, and as it goes
    on from the true text on its left."""
    whole, left = tokens.clone(), tokens.clone()
    for number, (row, hidden) in enumerate(zip(tokens, blank, strict=True)):
        whole[number] = infill(model, row[None], ~hidden, temperature=0.0)[0]
        for start, end, _ in blanks_of((~hidden).tolist()):
            given = [row[:start].tolist()] if start else None
            goes_on = generate(model, prompt=given, length=end, temperature=0.0)[0]
            left[number, start:end] = goes_on[start:end]
    return {"left": nearness(tokens, blank, left), "both": nearness(tokens, blank, whole)}


def fill_drawn(
    model: ArmdLM, tokens: Int[Tensor, "b n"], blank: Bool[Tensor, "b n"], **options: int
) -> dict[str, float]:
    """Every run of blanks, drawn with both sides known; options: candidates, seed."""
    filled, count = tokens.clone(), options["candidates"]
    for number, (row, hidden) in enumerate(zip(tokens, blank, strict=True)):
        generator = seeded(options["seed"], number, "fills")
        filled[number] = infill(model, row[None], ~hidden, candidates=count, generator=generator)[0]
    return nearness(tokens, blank, filled)


def nearness(
    tokens: Int[Tensor, "b n"], blank: Bool[Tensor, "b n"], filled: Int[Tensor, "b n"]
) -> dict[str, float]:
    """Over all runs of blanks."""
    near, equal = [], []
    for row, hidden, text in zip(tokens, blank, filled, strict=True):
        for start, end, _ in blanks_of((~hidden).tolist()):
            wanted, found = row[start:end].tolist(), text[start:end].tolist()
            near.append(rouge_l(found, wanted))
            equal.append(found == wanted)
    count = max(1, len(near))
    return {"fills": len(near), "rouge_l": sum(near) / count, "exact_fills": sum(equal) / count}
