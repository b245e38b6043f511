"""No block sees itself or what comes after it; everything earlier is seen."""

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from small import KINDS, Case, case_of, cases

from armd.model import modeling_armd, prefix


@pytest.fixture(autouse=True, params=[3, 128])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A short chunk, too: sums over many chunks must not leak through their rounding."""
    for name in ("prefix_sums", "prefix_sums_in_blocks"):
        shorter = partial(getattr(prefix, name), chunk=request.param)
        monkeypatch.setattr(modeling_armd, name, shorter)
    return request.param


def assert_strict(case: Case) -> None:
    """Change each token in turn: logits of its block and earlier ones stay as they are, to the last
    bit; every later row changes."""
    model, tokens, order = case.model, case.tokens, case.order.rows(len(case.tokens))
    with torch.no_grad():
        before = model(tokens, order=case.order).logits
        for row in range(len(tokens)):
            position, block = (t.expand(tokens.shape)[row] for t in (order.position, order.block))
            for k in range(len(position)):
                changed = tokens.clone()
                changed[row, position[k]] = (tokens[row, position[k]] + 1) % model.config.vocab_size
                after = model(changed, order=case.order).logits
                blind = block <= block[k]
                assert torch.equal(after[row, blind], before[row, blind])
                assert (after[row, ~blind] != before[row, ~blind]).any(-1).all()
                others = torch.arange(len(tokens)) != row
                assert torch.equal(after[others], before[others])


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases(double=True))
def test_no_block_sees_itself(chunk: int, case: Case) -> None:
    assert_strict(case)


@pytest.mark.parametrize("query", ["prefix", "neighbor"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_block_sees_itself_in_any_kind_of_order(kind: str, query: str, chunk: int) -> None:
    assert_strict(case_of(kind, 10, 3, n_two_stream=2, query=query))


def test_the_autoregressive_model_does_not_see_its_token() -> None:
    assert_strict(case_of("left to right", 10, 3, query="shift"))


@pytest.mark.parametrize("query", ["prefix", "mean", "neighbor"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_jacobian_has_no_entry_for_own_and_later_blocks(
    kind: str, query: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(kind, 7, 4, batch=1, vocab_size=4, query=query)
    inputs: list[torch.Tensor] = []
    make_rows = case.model.context_rows

    def watched(drawn: torch.Tensor) -> torch.Tensor:
        inputs.append(make_rows(drawn).detach().requires_grad_())
        return inputs[-1]

    monkeypatch.setattr(case.model, "context_rows", watched)
    logits = case.model(case.tokens, order=case.order).logits[0]
    block = case.order.rows(1).block[0].tolist()
    context_block = [-1, *block[:-1]]
    for k, row in enumerate(logits):
        for logit in row:
            (gradient,) = torch.autograd.grad(logit, inputs[0], retain_graph=True)
            for i, entry in enumerate(gradient[0]):
                assert bool(entry.any()) == (context_block[i] < block[k])
