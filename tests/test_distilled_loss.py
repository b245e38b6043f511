"""Laws of the loss of adaptation: its gradient, and who teaches which token."""

import torch

from armd import order as orders
from armd.train.distilled_loss import (
    CLOSE,
    distance_to_the_right,
    distilled_loss,
    share_of_text,
)


def test_the_distilled_loss_has_the_gradient_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, matrix = (torch.randn(n, 8, generator=generator) for n in (300, 40))
    source = torch.randn(300, 8, generator=generator)
    target = torch.randint(0, 40, (300,), generator=generator)
    weight, text = (torch.rand(300, generator=generator).round(decimals=1) for _ in range(2))
    rows.requires_grad_(), matrix.requires_grad_()
    found = distilled_loss(rows, matrix, source, target, weight, text)
    ours, theirs = (r @ matrix.T for r in (rows, source))
    nll = torch.nn.functional.cross_entropy(ours, target, reduction="none")
    theirs = theirs.detach().log_softmax(-1)
    apart = (theirs.exp() * (theirs - ours.log_softmax(-1))).sum(-1)
    wanted = (weight * (text * nll + (1 - text) * apart)).sum()
    assert torch.allclose(found, wanted, rtol=1e-5)
    for one, two in zip(
        torch.autograd.grad(found, (rows, matrix)),
        torch.autograd.grad(wanted, (rows, matrix)),
        strict=True,
    ):
        assert torch.allclose(one, two, atol=1e-4)


def test_distance_to_the_right_is_counted_when_a_token_is_drawn() -> None:
    order = orders.strided(8, 2).rows(1)  # 0 | 4 | 1 5 | 2 6 | 3 7
    found = dict(zip(order.position[0].tolist(), distance_to_the_right(order)[0], strict=True))
    assert [int(found[p]) for p in range(8)] == [0, 3, 2, 1, 0, 0, 0, 0]
    forward = distance_to_the_right(orders.left_to_right(5).rows(1))
    assert not forward.any()


def test_the_text_teaches_where_the_source_has_not_seen_what_is_known() -> None:
    right = torch.tensor([[0, 1, CLOSE, CLOSE + 1, 900]])
    assert torch.equal(share_of_text(right, 1.0, 0.25), torch.tensor([[0, 1, 1, 0.25, 0.25]]))
    assert torch.equal(share_of_text(right, 0.5, 0.25), torch.tensor([[0.5, 1, 1, 0.5, 0.5]]))
    assert bool((share_of_text(right, 0.0, 0.25) == 1).all())
