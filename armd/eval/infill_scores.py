"""Blanks in a text: which tokens are hidden, and how well a model fills them."""

from dataclasses import dataclass

import torch

from ..errors import ArmdError
from ..model.modeling_armd import ArmdLM
from ..model.order import Order, infill, left_to_right, stack
from ..model.shapes import Bool, Float, Int, Tensor
from .scorer import as_numbers

SPAN = 8
ROWS = 256


def check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ArmdError(f"a share of {share} blanks must be above 0 and below 1")


def hide(
    n: int, share: float, kind: str, *, generator: torch.Generator | None = None
) -> Bool[Tensor, "n"]:
    """True where a token is blank: about `share` of n, single tokens or spans of 8."""
    check_share(share)
    count = max(1, round(share * n))
    blank = torch.zeros(n, dtype=torch.bool)
    if kind == "tokens":
        blank[torch.randperm(n, generator=generator)[:count]] = True
        return blank
    # The text in pieces of a span's length; some pieces are chosen whole, the last one in part.
    pieces = torch.arange(n).split(SPAN)
    left = count
    for number in torch.randperm(len(pieces), generator=generator).tolist():
        place = pieces[number][:left]
        blank[place] = True
        left -= len(place)
        if left == 0:
            break
    return blank


@dataclass(frozen=True)
class Filled:
    """How the blanks of some windows came out, token by token, in natural order."""

    log_p: Float[Tensor, "m"]
    right: Bool[Tensor, "m"]
    """The most probable token is the true one, everything before it in the order being true."""
    whole: Bool[Tensor, "b"]
    """All blanks of a window are: then greedy filling gives back the text itself."""


@torch.inference_mode()
def fill_blanks(
    model: ArmdLM, tokens: Int[Tensor, "b n"], blank: Bool[Tensor, "b n"], *, full: bool
) -> Filled:
    """Exact log p of the blanks, one by one from left to right. full: given everything else;
    otherwise given only what stands to their left."""
    order = infill(~blank) if full else stack([left_to_right(tokens.shape[1])] * len(tokens))
    rows = in_place(model.hidden(tokens, order), order)
    wanted, target = rows[blank], tokens[blank]
    log_p, right = [], []
    for some, true in zip(wanted.split(ROWS), target.split(ROWS), strict=True):
        logits = model.logits(some).double()
        log_p.append(logits.log_softmax(1).gather(1, true[:, None]).squeeze(1))
        right.append(logits.argmax(1) == true)
    correct = torch.cat(right)
    wrong = torch.zeros_like(blank)
    wrong[blank] = ~correct
    return Filled(as_numbers(torch.cat(log_p)), correct, ~wrong.any(1))


def in_place(rows: Float[Tensor, "b n d"], order: Order) -> Float[Tensor, "b n d"]:
    """Rows in generation order put back in natural order."""
    inverse = order.rows(len(rows)).inverse().to(rows.device)
    return rows.gather(1, inverse[..., None].expand(rows.shape))
