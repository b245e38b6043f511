"""What the C files do is what torch does, and a row's bits are its own: not the batch's."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE

import armd
from armd.model.sampling import Sampling
from armd.native import library as native
from armd.native.sample import draw

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


def share() -> st.SearchStrategy[float | None]:
    return st.one_of(st.none(), st.floats(0.001, 1))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5000),
    st.builds(
        Sampling, st.floats(0.2, 3), st.one_of(st.none(), st.integers(1, 60)), share(), share()
    )
    | st.just(Sampling(0.0)),
    st.floats(0.01, 30),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_token_drawn_in_c_is_the_one_drawn_in_torch(
    rows: int, vocabulary: int, chosen: Sampling, spread: float, forced: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 2, vocabulary, generator=g) * spread
    logits[torch.rand(logits.shape, generator=g) < 0.3] = -torch.inf
    logits[..., 0] = 0.0
    uniform = torch.rand(rows, 2, dtype=torch.float64, generator=g)
    given_ids = torch.randint(-1, vocabulary, (rows, 2), generator=g) if forced else None
    token, logp = draw(logits, uniform, chosen, None, given_ids)
    expected, expected_logp = draw(logits.double(), uniform, chosen, None, given_ids)
    assert torch.equal(token, expected)
    torch.testing.assert_close(logp, expected_logp, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.4}])
def test_of_equal_tokens_just_as_many_stay_as_the_filter_says(filters: dict) -> None:
    """All weights stand in one bucket there, and none is larger than another."""
    logits, draws = torch.zeros(1, 1, 6), torch.arange(60) / 60
    uniform = draws.double()[None]
    token, _ = draw(logits.expand(1, 60, 6), uniform, Sampling(**filters))
    stay = 2 if len(filters) == 2 else 3  # 0.4 of five, or half of six
    assert token[0].tolist() == sorted(list(range(stay)) * (60 // stay))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in C, and in torch
@pytest.mark.parametrize("broken", [torch.nan, -torch.inf, torch.inf])
def test_logits_that_are_no_numbers_are_said_to_be_so(broken: float, dtype: torch.dtype) -> None:
    logits = torch.full((1, 1, 3000), broken, dtype=dtype)
    uniform = torch.full((1, 1), 0.5, dtype=torch.float64)
    for chosen in (Sampling(), Sampling(0.0), Sampling(0.7, top_k=5), Sampling(1, top_p=0.9)):
        with pytest.raises(armd.ArmdError, match="NaN"):
            draw(logits, uniform, chosen)


def test_threads_that_stand_behind_a_thread_go_when_it_says_so() -> None:
    script = """
import os, time, torch
from armd.native.linear import SkinnyLinear
from armd.native import library as native
linear = SkinnyLinear(torch.randn(64, 64))
def count():
    return len(os.listdir("/proc/self/task"))
alone = count()
for _ in range(2):
    linear(torch.randn(2, 64))
    assert count() > alone, "nobody came"
    native.release_threads()
    while count() > alone:  # what was told to end may take a moment
        time.sleep(0.005)
"""
    several = {**os.environ, "OMP_NUM_THREADS": "3", "OMP_DYNAMIC": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=several,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
