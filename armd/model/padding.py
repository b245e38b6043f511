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
