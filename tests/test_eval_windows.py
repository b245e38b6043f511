"""Windows and counts of every protocol, against counts made by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from armd.eval.windows import PROTOCOLS, Tally, cut

BOS, EOS = 98, 99


def encode(texts: list[str]) -> list[list[int]]:
    return [[ord(character) for character in text] for text in texts]


def windows(name: str, rows: list[str], window: int) -> tuple[list[list[int]], Tally]:
    tally = Tally()
    found = cut(PROTOCOLS[name], rows, encode, window=window, bos=BOS, eos=EOS, tally=tally)
    return [w.ids for w in found], tally


A, B, C, D, E = (ord(letter) for letter in "ABCDE")
ROWS = ["ABC", "", "DE"]  # 5 tokens, 8 with an EOS after every row: A B C $ $ D E $


def test_exact_keeps_the_tail():
    found, tally = windows("exact", ROWS, 3)
    assert found == [[A, B, C], [EOS, EOS, D], [E, EOS]]
    assert (tally.rows, tally.tokens, tally.windows, tally.dropped) == (3, 8, 3, 0)
    assert tally.text_bytes == 5


def test_sedd_cuts_plainly_and_drops_the_tail():
    found, tally = windows("sedd", ROWS, 3)
    assert found == [[A, B, C], [EOS, EOS, D]]
    assert (tally.tokens, tally.windows, tally.dropped) == (8, 2, 2)


def test_mdlm_wraps_windows():
    found, tally = windows("mdlm", ROWS, 5)
    assert found == [[BOS, A, B, C, EOS], [BOS, EOS, EOS, D, EOS]]
    assert (tally.tokens, tally.dropped) == (8, 2)


def test_bd3lm_has_no_row_ends():
    found, tally = windows("bd3lm", ROWS, 4)
    assert found == [[BOS, A, B, EOS], [BOS, C, D, EOS]]
    assert (tally.tokens, tally.dropped) == (5, 1)


def test_rows_are_windows_of_their_own_and_long_ones_are_cut():
    found, tally = windows("rows", ROWS, 3)
    assert found == [[A, B, C], [EOS], [D, E, EOS]]
    assert (tally.windows, tally.dropped) == (3, 1)


def test_lm1b_rows_leave_room_for_cls_and_keep_their_end():
    found, tally = windows("lm1b", [*ROWS, "ABCDE"], 5)
    assert found == [[A, B, C, EOS], [EOS], [D, E, EOS], [A, B, C, EOS]]
    assert (tally.windows, tally.dropped) == (4, 2)


def test_packed_lm1b_is_cls_tokens_sep_with_an_end_after_every_row():
    found, tally = windows("lm1b-packed", ROWS, 5)
    assert found == [[BOS, A, B, C, EOS], [BOS, EOS, EOS, D, EOS]]
    assert (tally.tokens, tally.dropped) == (8, 2)
    assert PROTOCOLS["lm1b-packed"].window == PROTOCOLS["lm1b"].window == 128


def test_peers_drop_a_tail_every_thousand_rows():
    # 1000 rows of 2 tokens: 285 windows of 7 and 5 over; then 500 more: 142 windows and 6 over.
    found, tally = windows("sedd", ["A"] * 1500, 7)
    assert len(found) == 285 + 142
    assert tally.dropped == 5 + 6


def test_splits_are_those_of_each_protocol():
    assert PROTOCOLS["sedd"].splits["wikitext2"] == "train"
    assert PROTOCOLS["sedd"].splits["wikitext103"] == "test"
    for name in ("mdlm", "bd3lm"):
        splits = PROTOCOLS[name].splits
        assert splits["ptb"] == splits["wikitext2"] == splits["wikitext103"] == "validation"
        assert splits["lm1b"] == splits["lambada"] == "test"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("ABCDE", max_size=9), min_size=1, max_size=30), st.integers(1, 12))
def test_exact_holds_every_token_once_whatever_the_window(rows, window):
    found, tally = windows("exact", rows, window)
    stream = [token for row in encode(rows) for token in [*row, EOS]]
    assert [token for ids in found for token in ids] == stream
    assert tally.tokens == len(stream) and tally.dropped == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("ABCDE", max_size=9), min_size=1, max_size=30),
    st.integers(3, 12),
    st.sampled_from(["sedd", "mdlm", "bd3lm"]),
)
def test_what_is_not_scored_is_counted_as_dropped(rows, window, name):
    found, tally = windows(name, rows, window)
    room = window - 2 if PROTOCOLS[name].wrapped else window
    assert all(len(ids) == window for ids in found)
    assert len(found) * room + tally.dropped == tally.tokens


def across(texts: list[str]) -> list[list[int]]:
    """A tokenizer with a token for a line's end and the space behind it."""
    return [[ord(character) for character in text.replace("\n ", "\0")] for text in texts]


def test_running_text_is_encoded_as_the_texts_that_are_trained_on():
    """A document at a time: line by line there would be other tokens, and a space before each."""
    lines = ["A\n", " B\n", " C", None, "D\n", " E\n", None]
    text = across(["A\n B\n C", "D\n E\n"])
    for name in ("exact", "sedd", "mdlm", "bd3lm"):
        options = {"window": 100, "bos": BOS, "eos": EOS, "running": True}
        tally = Tally()
        list(cut(PROTOCOLS[name], lines, across, tally=tally, **options))
        assert (tally.rows, tally.tokens, tally.text_bytes) == (2, len(text[0] + text[1]) + 2, 12)
    found = list(cut(PROTOCOLS["exact"], lines, across, tally=Tally(), **options))
    assert found[0].ids == [*text[0], EOS, *text[1], EOS]
    rows = cut(PROTOCOLS["rows"], lines, across, tally=Tally(), **options)
    assert [row.ids for row in rows] == [
        [*ids, EOS] for ids in across(["A", " B", " C", "D", " E"])
    ]


def test_a_document_without_text_has_no_end():
    """No model has learnt an EOS behind an EOS."""
    lines = [None, "A\n", None, "\n", None, None, "D\n", None, None]
    options = {"window": 100, "bos": BOS, "eos": EOS, "running": True, "tally": Tally()}
    (found,) = cut(PROTOCOLS["exact"], lines, across, **options)
    first, second = across(["A\n", "D\n"])
    assert found.ids == [*first, EOS, *second, EOS]
