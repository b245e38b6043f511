"""Are these the token ids of texts, is this an order? Asked before anything is made of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArmdError

if TYPE_CHECKING:
    import torch

    from ..model.order import Order


def token_rows(prompt: torch.Tensor | Sequence[Sequence[int]] | None) -> list[list[int]]:
    """Prompts as lists, one a text."""
    import torch

    wrong = ArmdError("a prompt is (batch, k) token ids, one row a text; write [ids] for one")
    if isinstance(prompt, str):
        raise ArmdError("a prompt is token ids; for text: armd.load(MODEL).write(TEXT)")
    try:
        rows = [torch.as_tensor(row) for row in (() if prompt is None else prompt)]
    except (TypeError, ValueError, RuntimeError):
        raise wrong from None
    if any(row.dim() != 1 or (len(row) and row.is_floating_point()) for row in rows):
        raise wrong
    return [row.long().tolist() for row in rows]


def end_token(eos: Any) -> int | None:
    """EOS as a number; raises for several of them, or for what is none."""
    if eos is None:
        return None
    try:
        if isinstance(eos, bool):
            raise TypeError
        return operator.index(eos)
    except TypeError:
        raise ArmdError(f"eos is one token id, not {eos!r}; give a whole number, or None") from None


def an_order(order: Any) -> Order:
    """The order; raises for what is none, such as the name of one."""
    from ..model.order import Order

    if not isinstance(order, Order):
        raise ArmdError(
            f"order is an armd.Order, not {type(order).__name__}; a name and a length make one: "
            "armd.order.named('random', 64)"
        )
    return order
