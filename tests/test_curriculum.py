"""Laws of the curriculum: which order each row is learnt in follows from (seed, step, row)."""

from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from armd import order as orders  # noqa: E402
from armd.runtime.seeds import seed_of  # noqa: E402
from armd.train.curriculum import Stage, blanks, orders_of, rho, spans, stage  # noqa: E402
from armd.train.presets import PRESETS, preset  # noqa: E402
from armd.train.recipe import Curriculum  # noqa: E402
from armd.train.recipe_files import differences  # noqa: E402

PAPER = preset("owt-small").curriculum
KINDS = [
    Stage("shuffled", 0),
    Stage("shuffled", 5),
    Stage("shuffled", 5, "among", "tokens"),
    Stage("random"),
    Stage("masking", 4),
    Stage("strided", 1),
    Stage("strided", 4),
    Stage("infill"),
]


def test_rho_at_the_papers_points() -> None:
    values = {i: rho(PAPER, i) for i in (0, 8_999, 9_000, 28_500, 47_999, 48_000, 399_999)}
    assert values == {0: 0, 8_999: 0, 9_000: 1, 28_500: 16, 47_999: 31, 48_000: 32, 399_999: 32}
    lm1b = preset("lm1b").curriculum
    assert [rho(lm1b, i) for i in (99_999, 100_000, 300_000, 999_999)] == [0, 1, 8, 8]
    many = preset("owt-small-rho64").curriculum
    assert [rho(many, i) for i in (39_999, 40_000, 120_000)] == [0, 1, 64]


def test_rho_never_falls() -> None:
    values = [rho(PAPER, i) for i in range(0, 60_000, 50)]
    assert values == sorted(values) and set(values) == set(range(33))


@given(st.integers(0, 3), st.integers(0, 399_999), st.integers(0, 511))
@settings(max_examples=40, deadline=None)
def test_at_most_rho_tokens_are_out_of_turn(seed: int, step: int, row: int) -> None:
    scored = torch.ones(1, 256, dtype=torch.bool)
    for shuffle in ("move", "among"):
        now = stage(replace(PAPER, shuffle=shuffle), seed=seed, step=step)
        rows = range(row, row + 1)
        order = orders_of(now, seed=seed, step=step, rows=rows, scored=scored).rows(1)
        position = order.position[0]
        assert longest_rising(position.tolist()) >= 256 - rho(PAPER, step)
        if shuffle == "among":
            assert int((position != torch.arange(256)).sum()) <= rho(PAPER, step)
        assert order.single_token_blocks


def longest_rising(values: list[int]) -> int:
    """How many tokens can stay so that the others alone are out of turn."""
    ends: list[int] = []
    for value in values:
        place = bisect_left(ends, value)
        ends[place : place + 1] = [value]
    return len(ends)


def test_a_single_token_moves_or_stays_by_the_reading() -> None:
    scored = torch.ones(64, 32, dtype=torch.bool)
    for shuffle, leaves in (("move", True), ("among", False)):
        now = Stage("shuffled", 1, shuffle)
        order = orders_of(now, seed=0, step=0, rows=range(64), scored=scored)
        moved = (order.position != torch.arange(32)).any(1)
        assert bool(moved.all()) if leaves else not bool(moved.any())


def test_rho_is_a_share_of_padded_rows_or_a_count_of_their_tokens() -> None:
    """8 of 128 places: of 32 real tokens 2 are shuffled on average, or 8."""
    scored = torch.arange(128).expand(400, 128) < 32
    for rho_of, expected in (("window", 2.0), ("tokens", 8.0)):
        now = Stage("shuffled", 8, "move", rho_of)
        order = orders_of(now, seed=0, step=0, rows=range(400), scored=scored)
        out = [32 - longest_rising(row[:32]) for row in order.position.tolist()]
        # a moved token may land where it is in turn, so the count is at most rho
        assert 0.75 * expected < sum(out) / len(out) <= expected


@pytest.mark.parametrize("shuffle", ["move", "among"])
def test_a_shuffled_row_is_the_library_order_of_its_seed(shuffle: str) -> None:
    scored = torch.ones(3, 32, dtype=torch.bool)
    now = Stage("shuffled", 8, shuffle)
    rows = orders_of(now, seed=7, step=5, rows=range(4, 7), scored=scored)
    for index, row in enumerate(range(4, 7)):
        generator = torch.Generator().manual_seed(seed_of(7, 5, row))
        order = orders.shuffled(32, 8, how=shuffle, generator=generator)
        assert torch.equal(rows.position[index], order.position)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_orders_do_not_depend_on_who_asks(kind: Stage) -> None:
    """Eight rows at once, or two by two, or in another process: the same orders."""
    scored = torch.ones(8, 24, dtype=torch.bool)
    whole = orders_of(kind, seed=3, step=9, rows=range(8), scored=scored)
    for first in range(0, 8, 2):
        part = orders_of(
            kind, seed=3, step=9, rows=range(first, first + 2), scored=scored[first : first + 2]
        )
        for name in ("position", "block"):
            want = getattr(whole.rows(8), name).expand(8, -1)[first : first + 2]
            assert torch.equal(getattr(part.rows(2), name).expand(2, -1), want)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_pads_come_last_and_one_by_one(kind: Stage) -> None:
    lengths = torch.tensor([1, 5, 12, 3])
    scored = torch.arange(12) < lengths[:, None]
    order = orders_of(kind, seed=0, step=1, rows=range(4), scored=scored).rows(4)
    for row, length in enumerate(lengths.tolist()):
        assert sorted(order.position[row, :length].tolist()) == list(range(length))
        assert order.position[row, length:].tolist() == list(range(length, 12))
        after = order.block[row, max(0, length - 1) :]
        assert bool((after.diff() > 0).all())


def test_the_strided_phase_has_decodings_own_order() -> None:
    scored = torch.ones(4, 32, dtype=torch.bool)
    for streams in (1, 2, 4):
        order = orders_of(Stage("strided", streams), seed=0, step=0, rows=range(4), scored=scored)
        want = orders.strided(32, streams)
        assert torch.equal(order.position, want.position) and torch.equal(order.block, want.block)


def test_streams_are_drawn_evenly_after_the_progressive_phase() -> None:
    seen = Counter(str(stage(PAPER, seed=0, step=PAPER.steps + i)) for i in range(3_000))
    assert set(seen) == {"S 1", "S 2", "S 4"}
    assert all(850 < count < 1150 for count in seen.values())
    assert stage(PAPER, seed=0, step=PAPER.steps - 1) == Stage("shuffled", 32)


def test_mixtures_have_their_shares() -> None:
    mixed = replace(Curriculum(), p_random=0.2, p_masking=0.3, p_infill=0.1)
    seen = Counter(stage(mixed, seed=1, step=i).kind for i in range(4_000))
    for kind, share in (("random", 0.2), ("masking", 0.3), ("infill", 0.1), ("shuffled", 0.4)):
        assert abs(seen[kind] / 4_000 - share) < 0.03, kind


@given(st.integers(1, 50), st.integers(0, 1 << 40))
def test_something_is_always_left_to_fill_in(n: int, seed: int) -> None:
    known = blanks(n, torch.Generator().manual_seed(seed))
    assert known.shape == (n,) and not bool(known.all())


@given(st.integers(1, 400), st.integers(1, 20), st.integers(0, 1 << 40))
def test_blanks_of_a_most_length_have_known_text_between(n: int, most: int, seed: int) -> None:
    known = spans(n, torch.Generator().manual_seed(seed), most=most)
    runs = known.long().unique_consecutive(return_counts=True)
    blank = [count for value, count in zip(*(t.tolist() for t in runs), strict=True) if not value]
    assert known.shape == (n,) and blank and max(blank) <= most


@given(st.integers(3, 400), st.sampled_from([0.25, 0.75, 0.99]), st.integers(0, 1 << 40))
def test_a_blank_has_known_text_on_both_sides(n: int, share: float, seed: int) -> None:
    """However short the text: a blank at its end is no infilling, and teaches nothing."""
    known = spans(n, torch.Generator().manual_seed(seed), most=16, share=share)
    first = int((~known).nonzero()[0])
    assert first > 0 and bool(known[first:].any())


@given(st.integers(1, 200), st.sampled_from([0.25, 0.5, 0.75]), st.integers(0, 1 << 40))
def test_blanks_are_filled_span_by_span_in_any_order(n: int, share: float, seed: int) -> None:
    now = Stage("infill", 8, known=share, filled="random")
    scored = torch.ones(1, n, dtype=torch.bool)
    order = orders_of(now, seed=seed, step=0, rows=range(1), scored=scored)
    generator = torch.Generator().manual_seed(seed_of(seed, 0, 0))
    known = spans(n, generator, most=8, share=share)
    count, position = int(known.sum()), order.position[0]
    assert position[:count].tolist() == known.nonzero().flatten().tolist()
    blank = position[count:].tolist()
    assert sorted(blank) == (~known).nonzero().flatten().tolist()
    for before, after in pairwise(blank):  # a span is begun at its start and written to its end
        assert after == before + 1 or (bool(known[after - 1]) or after == 0)
        assert after == before + 1 or before + 1 == n or bool(known[before + 1])


def test_every_preset_names_itself_and_checks() -> None:
    for name, make in PRESETS.items():
        assert make().preset == name
        make().check()


def test_how_nothing_is_shuffled_makes_no_difference() -> None:
    """Phases of strided orders alone were recorded under both names."""
    base = preset("mini")
    for rho_, count in ((0, 0), (4, 1)):
        one, two = (
            replace(base, curriculum=replace(base.curriculum, rho=rho_, shuffle=how))
            for how in ("move", "among")
        )
        assert len(list(differences(one, two))) == count
