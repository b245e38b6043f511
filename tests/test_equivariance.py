"""Inside a block there is no order: listing its tokens otherwise lists the logits otherwise."""

import torch
from hypothesis import given, settings
from small import Case, cases

from armd.order import Order


@settings(max_examples=40, deadline=None)
@given(case=cases(double=True))
def test_reordering_inside_blocks_reorders_the_logits_and_nothing_else(case: Case) -> None:
    model, tokens = case.model, case.tokens
    order = case.order.rows(len(tokens))
    # sorting random numbers within each block: a random permutation that never leaves a block
    noise = torch.rand(order.block.shape, generator=case.generator, dtype=torch.float64)
    moved = (order.block + noise).argsort(-1)
    other = Order(order.position.gather(1, moved), order.block)

    with torch.no_grad():
        before = model(tokens, order=order).logits
        after = model(tokens, order=other).logits
    index = moved.expand(tokens.shape)[..., None].expand(before.shape)
    torch.testing.assert_close(after, before.gather(1, index), rtol=1e-10, atol=1e-10)
