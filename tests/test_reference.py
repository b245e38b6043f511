"""Fast equals literal: the model's logits and gradients are those of the paper's equations."""

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from small import KINDS, Case, case_of, cases
from torch.nn import functional as F

import armd
from armd.model import modeling_armd, prefix, reference

FEW = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


@pytest.fixture(autouse=True, params=[3, 128])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Lengths here rarely divide a chunk of 3, and never reach one of 128."""
    for name in ("prefix_sums", "prefix_sums_in_blocks"):
        shorter = partial(getattr(prefix, name), chunk=request.param)
        monkeypatch.setattr(modeling_armd, name, shorter)
    return request.param


def assert_equal_to_reference(case: Case) -> None:
    model, tokens, order = case.model, case.tokens, case.order
    weights = dict(model.named_parameters())
    fast = model(tokens, order=order).logits
    slow = reference.logits(weights, model.config, tokens, order)
    tolerance = TOLERANCE[fast.dtype]
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)

    target = tokens.gather(1, order.rows(len(tokens)).position.expand(tokens.shape))
    loss = armd.loss(model, tokens, order)
    wanted = F.cross_entropy(slow.flatten(0, 1), target.flatten())
    torch.testing.assert_close(loss, wanted, rtol=tolerance, atol=tolerance)
    names, leaves = zip(*weights.items(), strict=True)
    ours = torch.autograd.grad(loss, leaves, allow_unused=True)
    theirs = torch.autograd.grad(wanted, leaves, allow_unused=True)
    for name, mine, other, leaf in zip(names, ours, theirs, leaves, strict=True):
        zero = torch.zeros_like(leaf)  # a one-token text never uses some weights
        mine, other = zero if mine is None else mine, zero if other is None else other
        torch.testing.assert_close(
            mine, other, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: name + text
        )


@FEW
@given(case=cases(double=True))
def test_fast_equals_reference_in_double(chunk: int, case: Case) -> None:
    assert_equal_to_reference(case)


@FEW
@given(case=cases())
def test_fast_equals_reference_in_single(chunk: int, case: Case) -> None:
    assert_equal_to_reference(case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("query", ["prefix", "mean"])
def test_fast_equals_reference_for_every_kind_of_order(kind: str, query: str, chunk: int) -> None:
    assert_equal_to_reference(case_of(kind, 11, 1, double=True, query=query, n_two_stream=2))


@pytest.mark.parametrize("n_two_stream", [1, 2, 3])
def test_the_shifted_query_collapses_into_one_stream(n_two_stream: int) -> None:
    """The reference keeps both streams here; the model has one, and agrees: the paper's remark."""
    assert_equal_to_reference(
        case_of("left to right", 10, 2, double=True, query="shift", n_two_stream=n_two_stream)
    )


def literal_prefix(query: torch.Tensor, key: torch.Tensor, x: torch.Tensor, limit: torch.Tensor):
    """((PE PE^T) * M^sc) X, with M^sc written as a 0-1 matrix."""
    visible = torch.arange(x.shape[1]) < limit[..., None]
    return ((query @ key.mT) * visible) @ x


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 128, 129, 300])
@pytest.mark.parametrize("singles", [True, False])
def test_three_forms_of_prefix_aggregation_agree(n: int, singles: bool, chunk: int) -> None:
    generator = torch.Generator().manual_seed(n)
    query, key = torch.randn(2, 2, n, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(2, n, 4, generator=generator, dtype=torch.float64)
    count = torch.arange(1, n + 1).expand(2, n)
    limit = count if singles else torch.randint(1, n + 1, (2, n), generator=generator)
    limit = limit.sort(-1).values
    matrix = literal_prefix(query, key, x, limit)

    chunked = prefix.prefix_sums_in_blocks(query, key, x, limit, chunk=chunk)
    torch.testing.assert_close(chunked, matrix, rtol=1e-10, atol=1e-10)
    if singles:
        plain = prefix.prefix_sums(query, key, x, chunk=chunk)
        torch.testing.assert_close(plain, matrix, rtol=1e-10, atol=1e-10)

    for b in range(2):  # the state grows by the keys that became visible, then answers
        state, seen = torch.zeros(1, 5, 4, dtype=torch.float64), 0
        for k in range(n):
            now = int(limit[b, k])
            new = slice(seen, now)
            state = prefix.append_to_state(state, key[b : b + 1, new], x[b : b + 1, new])
            seen = now
            recurrent = query[b, k] @ state[0]
            torch.testing.assert_close(recurrent, matrix[b, k], rtol=1e-10, atol=1e-10)
