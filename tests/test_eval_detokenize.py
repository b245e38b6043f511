"""Detokenisers: by our rules a row comes out as it was written, and a second pass changes nothing;
by the peers' rules, which each run once, their gaps come out too."""

import os
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armd.eval import detokenize
from armd.eval.corpora import find_corpora
from armd.eval.peer_detokenize import PEER_DETOKENIZERS
from armd.eval.windows import PROTOCOLS

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


# worked out by hand from the peers' published rules, the gaps first
PEERS = [
    ("lambada", " \u201cIt\u2019s here,\u201d she said. \n", '\n"It\u2019s here," she said.'),
    ("ptb", "they 've paid N N , did n't they", "they 've paid 1 1 , didn't they"),
    ("ptb", "mr. <unk> 's $ N bonus\\/share", "mr. ?'s $1 bonus/share"),
    ("ptb", " ".join(["N"] * 25), " ".join(["N", *["1"] * 23, "N"])),
    (
        "lm1b",
        "She ca n't ( or wo n't ) pay $ 5 , he said .",
        "She ca n't (or wo n't) pay $5, he said.",
    ),
    ("lm1b", 'He said : " No ! " .', 'He said: "No!" .'),
    ("lm1b", "Is it Tom 's ?", "Is it Tom's?"),
    ("wikitext2", " the James ' house , a ' b ' c \n", " the James'house, a' b ' c\n"),
    ("wikitext2", " 10 ° C in 1 @,@ 000 ( or so ) ; \n", " 10°C in 1,000 (or so);\n"),
    ("wikitext103", " = = = = A = = = = \n", " ==== A ====\n"),
]


@pytest.mark.parametrize(("name", "row", "expected"), PEERS)
def test_peers_rules_run_once_with_their_gaps(name, row, expected):
    assert PEER_DETOKENIZERS[name](row) == expected


def test_named_protocols_have_the_peers_rules_and_exact_has_ours():
    for name, protocol in PROTOCOLS.items():
        ours = name in ("exact", "rows")
        wanted = detokenize.DETOKENIZERS if ours else PEER_DETOKENIZERS
        assert protocol.detokenizers is wanted


DATA = os.environ.get("ARMD_DATA")
# file, rows read, rows that differ, GPT-2 tokens by our rules, and by the peers'
REAL = [
    ("lambada=lambada", None, 1610, 415_968, 423_590),
    ("ptb=ptb", None, 77, 87_293, 87_374),
    ("wikitext2=wikitext-2-raw/wiki.test.raw", None, 156, 270_437, 270_438),
    ("wikitext103=wikitext-103", None, 153, 268_681, 268_680),
    ("lm1b=lm1b-heldout", 6000, 269, 168_872, 168_950),
]


@pytest.mark.skipif(not DATA, reason="ARMD_DATA names no folder of benchmark files")
@pytest.mark.parametrize(("word", "rows", "differ", "ours", "peers"), REAL)
def test_real_rows_have_the_token_counts_of_both_rules(word, rows, differ, ours, peers):
    from armd.data.tokenizer import find_tokenizer

    name, _, place = word.partition("=")
    backend = find_tokenizer(str(Path(DATA or "") / "gpt2-bpe"), (), rows=False).backend
    texts = []
    for protocol in (PROTOCOLS["exact"], PROTOCOLS["sedd"]):
        word = f"{name}={Path(DATA or '') / place}"
        (corpus,) = find_corpora(word, PROTOCOLS["exact"].splits, protocol.detokenizers)
        texts.append(list(islice(corpus.rows(), rows)))
    assert sum(a != b for a, b in zip(*texts, strict=True)) == differ
    for found, count in zip(texts, (ours, peers), strict=True):
        encoded = backend.encode_batch(found, add_special_tokens=False)
        assert sum(len(e.ids) for e in encoded) == count
