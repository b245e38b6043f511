"""A text in plain numbers is a canvas, and a pen draws on it what tensors would."""

from unittest.mock import patch

import pytest
import torch
from eval_models import tiny_armd
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import armd
from armd.generation.decode_plan import Course, completing
from armd.generation.native_state import script_of, step_of
from armd.generation.plan import from_blanks
from armd.generation.sampling import Sampling
from armd.generation.state import Filling
from armd.native import library as native
from armd.native import packed as fast
from armd.runtime.seeds import seeded


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 2), st.integers(1, 5))
def test_a_course_is_a_canvas_in_plain_numbers(known: list[bool], kind: int, size: int) -> None:
    blanks = known.count(False)
    assume(blanks)
    orders = [
        armd.order.strided(blanks, min(size, blanks)),
        armd.order.random(blanks, generator=seeded(size)),
        armd.order.masking(blanks, size, generator=seeded(size)),
    ]
    tokens = torch.randint(9, (len(known),), generator=seeded(kind))
    order, there = orders[kind], torch.tensor(known)
    canvas = from_blanks(tokens[None], there[None], order=armd.order.completing(there, order))
    plain = (order.position.tolist(), order.block.tolist())
    course = completing(tokens.tolist(), known, *plain)
    assert course == Course.of(canvas) and Course.of(course.canvas()) == course
    assert course.steps == canvas.steps


@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    kind=st.sampled_from(["strided", "masking", "prompts"]),
    way=st.sampled_from([{}, {"top_p": 0.8}, {"temperature": 0}, {"top_k": 3, "min_p": 0.01}]),
    eos=st.sampled_from([None, 3]),
    few=st.sampled_from([4, 9, 128]),
    seed=st.integers(0, 2**31),
)
def test_a_script_draws_what_its_filling_would(
    rows: list[int], kind: str, way: dict, eos: int | None, few: int, seed: int
) -> None:
    """To the last bit, step by step: batches of unlike rows, texts that end, and some passes with
    more rows than a pen takes, so that it and the filling's own passes take turns."""
    g = torch.Generator().manual_seed(seed)
    packed = fast.pack(tiny_armd(vocab_size=7, n_layers=3, n_two_stream=2))
    n, batch = int(torch.randint(6, 40, (), generator=g)), len(rows)
    known = torch.rand(batch, n, generator=g) < 0.4
    if kind == "prompts":
        known = torch.arange(n) < torch.randint(n - 1, (batch, 1), generator=g)
    known[0, -1] = False  # others may be known altogether
    known[-1] |= batch > 2

    def order_of(own: torch.Tensor, size: int) -> armd.Order:
        count = int((~own).sum())
        if count and kind == "masking":
            return armd.order.completing(own, armd.order.masking(count, 3, generator=g))
        return armd.order.infill(own, max(1, min(size, count)))

    whole = [order_of(own, size) for own, size in zip(known, rows, strict=True)]
    tokens = torch.randint(7, (batch, n), generator=g)
    canvas = from_blanks(tokens, known, order=armd.order.stack(whole))
    fillings = [
        Filling(
            *(packed, canvas),
            sampling=Sampling(**way),
            generator=torch.Generator().manual_seed(1),
            eos=eos,
        )
        for _ in range(2)
    ]
    script = script_of(fillings[0])
    assert script is not None
    with torch.no_grad(), patch("armd.generation.native_state.FEW", few):
        while not fillings[1].done:
            found, expected = step_of(fillings[0], script), step_of(fillings[1], None)
            assert found.index == expected.index
            assert found.position.equal(expected.position) and found.drawn.equal(expected.drawn)
            assert found.token.equal(expected.token)
            assert found.logp[found.drawn].equal(expected.logp[found.drawn])
    assert fillings[0].done and fillings[0].text.equal(fillings[1].text)
