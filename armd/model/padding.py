"""Padding: texts of unequal length in one batch, as marked by an attention_mask.

Nothing is masked. A text is moved to the front of its row, so that its positions start at 0, and
its padding comes last in the order, so that no token sees it.
"""

from typing import NamedTuple

import torch

from .errors import ArmdError
from .order import Order
from .shapes import Int, Tensor


class Unpadded(NamedTuple):
    """A batch as the model takes it."""

    tokens: Int[Tensor, "b n"]
    """Each text, then its padding."""
    order: Order
    """That of the caller among real tokens, then the padding."""
    back: Int[Tensor, "b n"]
    """In which row of this order the k-th token of the caller's order is."""


def unpad(tokens: Int[Tensor, "b n"], order: Order, mask: Tensor) -> Unpadded:
    """The batch without padding in front of or among the tokens."""
    real = checked(mask, tokens)
    n, device = tokens.shape[1], tokens.device
    place = torch.arange(n, device=device)
    start = real.long().argmax(1, keepdim=True)  # the first real token
    order = order.rows(len(tokens)).to(device)
    position, block = (side.expand(tokens.shape) for side in (order.position, order.block))
    padded = ~real.gather(1, position)
    chosen = padded.long().argsort(dim=1, stable=True)
    last = padded.gather(1, chosen)
    behind = block.max() + 1 + place  # each in a block of its own
    return Unpadded(
        tokens.gather(1, (place + start) % n),
        Order(
            ((position - start) % n).gather(1, chosen),
            torch.where(last, behind, block.gather(1, chosen)),
        ),
        chosen.argsort(1),
    )


def checked(mask: Tensor, tokens: Tensor) -> Tensor:
    """True where a token is real; raises for a mask that is more than padding at one end."""
    if mask.shape != tokens.shape:
        raise ArmdError(
            f"attention_mask {tuple(mask.shape)} does not fit tokens {tuple(tokens.shape)}; give "
            "one number a token, 1, or 0 for padding"
        )
    real = mask.to(tokens.device) != 0
    if bool(((real[:, 1:] != real[:, :-1]).sum(1) > 1).any()):
        raise ArmdError(
            "attention_mask has padding on both sides or between tokens; pad on the left or on the "
            "right (which tokens see which is said by order=)"
        )
    return real


def check_positions(
    position_ids: Tensor, tokens: Int[Tensor, "b n"], before: int, mask: Tensor | None
) -> None:
    """Raise for positions other than those that the tokens have anyway, behind `before` others:
    counted from 0, with or without the padding. What is said of padding is ignored."""
    batch, n = tokens.shape
    place = torch.arange(before + n, device=tokens.device).expand(batch, -1)
    real = torch.ones_like(place) > 0 if mask is None else checked(mask, place)
    given = position_ids.to(tokens.device)
    if given.dim() == 2 and given.shape[1] == n and len(given) in (1, batch):
        for own in (place, real.long().cumsum(1) - 1):
            if bool((given == own[:, before:])[real[:, before:]].all()):
                return
    raise ArmdError(
        "an armd model takes no position_ids but 0, 1, 2, ... in each row; leave them out, and "
        "give texts that do not see each other in rows of their own"
    )
