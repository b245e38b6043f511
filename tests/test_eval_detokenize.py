"""Detokenisers: a row of each data set comes out as it was written, and a second pass changes
nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armd.eval import detokenize

FIXTURES = [
    (
        detokenize.wikitext,
        ' He played in 1 @,@ 000 @.@ 5 non @-@ league games , ( or so ) : Bach \'s " best " . \n',
        ' He played in 1,000.5 non-league games, (or so): Bach\'s "best".\n',
    ),
    (detokenize.wikitext, " = = = Early life = = = \n", " === Early life ===\n"),
    (detokenize.wikitext, "", ""),
    (
        detokenize.ptb,
        "the company 's profit rose N N to $ N million and it did n't <unk> <unk> the # N loss",
        "the company's profit rose 1 1 to $1 million and it didn't ? ? the #1 loss",
    ),
    (
        detokenize.lm1b,
        "He paid $ 5 ( or £ 3 ) , did n't he ? \" It 's Tom 's , \" she said .",
        "He paid $5 (or £3), didn't he? \"It's Tom's,\" she said.",
    ),
    (detokenize.lambada, "\u201cIt\u2019s here,\u201d she said. \n", '\n"It\'s here," she said.'),
]
ALL = sorted({fixture[0] for fixture in FIXTURES}, key=lambda f: f.__name__)
MARKS = "a N <unk> @-@ @,@ . , ; : ? ! ' 's n't \" ( ) [ ] { } = $ # £ 1 / http ° s"
WORDS = st.sampled_from([*MARKS.split(), "\n"])


@pytest.mark.parametrize(("detokenizer", "row", "expected"), FIXTURES)
def test_a_row_comes_out_as_written(detokenizer, row, expected):
    assert detokenizer(row) == expected


@pytest.mark.parametrize("detokenizer", ALL)
@settings(max_examples=200, deadline=None)
@given(words=st.lists(WORDS, max_size=20))
def test_a_second_pass_changes_nothing(detokenizer, words):
    once = detokenizer(" ".join(words))
    assert detokenizer(once) == once
