"""The cache is exact: what the loop drew, block by block, one full pass over the finished text says
too, whatever the order, the blocks, the prompts, the batch, the weights and the depth of the two
streams."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import EVERY, Case, case_of, cases, order_of

import armd
from armd.commands.quantize import ROW_LOSS
from armd.errors import ArmdError
from armd.generation.outputs import StepOutput
from armd.native.packed import pack


def finished(case: Case, steps: list[StepOutput], tokens: torch.Tensor) -> torch.Tensor:
    """The text after all steps, natural order."""
    text = torch.nn.functional.pad(tokens, (0, 1))
    for step in steps:
        text.scatter_(1, step.position, step.token)
    return text[:, :-1]


def agree(
    case: Case,
    steps: list[StepOutput],
    text: torch.Tensor,
    order: armd.Order,
    limit: float | None = None,
) -> torch.Tensor:
    """Every log-probability the loop gave, of tokens drawn and of tokens put in, against one pass
    over the finished text; how far apart they are."""
    with torch.no_grad():
        full = armd.log_likelihood(case.model, text, order).double()
    batch, n = text.shape
    place = torch.nn.functional.pad(order.rows(batch).inverse().expand(batch, n), (0, 1), value=n)
    full = torch.nn.functional.pad(full, (0, 1))
    limit = limit or (1e-10 if case.model.bos.dtype == torch.float64 else 1e-4)
    found = []
    for step in steps:
        real = step.position < n
        expected = full.gather(1, place.gather(1, step.position))
        assert step.logp.dtype == torch.float64
        found.append((step.logp - expected)[real].abs())
        worst = found[-1].max()
        assert worst <= limit, f"step {step.index}: off by {worst}"
    return torch.cat(found)


def run(
    case: Case,
    *,
    known: torch.Tensor | None = None,
    order: armd.Order | None = None,
    limit: float | None = None,
) -> torch.Tensor:
    """Fill the blanks and compare; without `known` everything is blank."""
    order = case.order if order is None else order
    known = torch.zeros_like(case.tokens, dtype=torch.bool) if known is None else known
    tokens = case.tokens * known
    steps = list(
        armd.stream(case.model, tokens=tokens, known=known, order=order, generator=case.generator)
    )
    text = finished(case, steps, tokens)
    assert torch.equal(text[known], case.tokens[known])
    return agree(case, steps, text, order, limit)


@settings(max_examples=30, deadline=None)
@given(cases(double=True))
def test_any_order_and_blocking_in_double(case: Case) -> None:
    run(case)


WEIGHTS = ("plain", "fp32", "int8", "bf16", "q8", "q4")


def packed(case: Case, weights: str, *, float_rows: bool = True) -> Case:
    """The same with other weights: rounded ones say something else, but cached as full."""
    try:
        return replace(case, model=pack(case.model, weights, float_rows=float_rows))
    except ArmdError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("weights", WEIGHTS)
@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_any_order_and_blocking_in_single(weights: str, case: Case) -> None:
    run(packed(case, weights))


@pytest.mark.parametrize("weights", ["double", *WEIGHTS[1:]])
@settings(max_examples=30, deadline=None)
@given(data=st.data(), share=st.floats(0, 1))
def test_known_tokens_anywhere(weights: str, data: st.DataObject, share: float) -> None:
    """Known tokens in front are one prefill; inside or after blanks they are put in as drawn."""
    case = data.draw(cases(double=weights == "double"))
    case = case if weights == "double" else packed(case, weights)
    known = torch.rand(case.tokens.shape, generator=case.generator) < share
    known[0, int(torch.randint(known.shape[1], (), generator=case.generator))] = False
    run(case, known=known)


@settings(max_examples=30, deadline=None)
@given(cases(double=True), st.integers(1, 5), st.integers(1, 4))
def test_unlike_rows_with_their_known_tokens_first(case: Case, batch: int, streams: int) -> None:
    """Rows of different prefills and numbers of steps in one batch, as templates make them."""
    n = case.tokens.shape[1]
    vocabulary = case.model.config.vocab_size
    tokens = torch.randint(vocabulary, (batch, n), generator=case.generator)
    known = torch.rand((batch, n), generator=case.generator) < 0.6
    known[:, 0] = False
    streams = min(streams, int((~known).sum(1).min()))
    case = Case(case.model, tokens, case.order, case.generator)
    run(case, known=known, order=armd.order.infill(known, streams=streams))


@settings(max_examples=30, deadline=None)
@given(
    cases(double=True, queries=(*EVERY, "shift")),
    st.lists(st.integers(0, 11), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_prompts_of_unlike_lengths(case: Case, lengths: list[int], streams: int) -> None:
    n = 13
    shift = case.model.config.query == "shift"
    streams = 1 if shift else min(streams, n - max(lengths))
    vocabulary, generator = case.model.config.vocab_size, case.generator
    prompt = [torch.randint(vocabulary, (k,), generator=generator).tolist() for k in lengths]
    steps = list(
        armd.stream(case.model, length=n, prompt=prompt, streams=streams, generator=generator)
    )
    known = torch.arange(n) < torch.tensor(lengths)[:, None]
    tokens = torch.zeros(len(lengths), n, dtype=torch.long)
    for row, given_ids in zip(tokens, prompt, strict=True):
        row[: len(given_ids)] = torch.tensor(given_ids, dtype=torch.long)
    text = finished(case, steps, tokens)
    assert all(row[: len(p)].tolist() == p for row, p in zip(text, prompt, strict=True))
    agree(case, steps, text, armd.order.infill(known, streams=streams))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("query", ["prefix", "neighbor"])
@pytest.mark.parametrize("kind", ["random", "strided", "rows"])
def test_long_texts_in_single(kind: str, query: str, weights: str) -> None:
    sizes = {"n_layers": 4, "n_two_stream": 2, "d_model": 32, "n_heads": 4}
    apart = (
        {"right_bias": True, "right_offset": 20, "adapter_rank": 3} if query == "neighbor" else {}
    )
    case = case_of(kind, 48, 5, batch=3, query=query, **sizes, **apart)
    case = packed(case, weights)
    run(case)
    prompt = torch.arange(48).expand(3, 48) < 20
    run(case, known=prompt, order=order_of("random", 48, case.generator))


@pytest.mark.parametrize("weights", ["q8", "q4"])
@pytest.mark.parametrize("kind", ["random", "strided", "rows"])
def test_rows_of_eight_bits(kind: str, weights: str) -> None:
    """A row that differs in its last bit can be rounded to the number beside its own; these large
    weights make such a step larger. So most tokens agree as closely as with float rows, because the
    integers are equal, and on average cached and full stay within the nats above which rows are
    not rounded at all."""
    case = case_of(kind, 48, 5, batch=3, n_layers=4, n_two_stream=2, d_model=64, n_heads=4)
    off = run(packed(case, weights, float_rows=False), limit=0.15)
    assert off.median() <= 1e-5
    assert off.mean() <= ROW_LOSS
