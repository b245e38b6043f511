"""Blanks: as many as asked, and both likelihoods are what the chain rule says."""

import json

import pytest
import torch
from eval_models import VOCABULARY, saved, tiny_armd, tiny_gpt2
from hypothesis import given, settings
from hypothesis import strategies as st

import armd
from armd.errors import ArmdError
from armd.eval.infill import eval_infill
from armd.eval.infill_fills import fill_greedily, rouge_l
from armd.eval.infill_scores import fill_blanks, hide
from armd.infilling import blanks_of


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 100), st.floats(0.05, 0.95), st.sampled_from(["tokens", "spans"]))
def test_there_are_as_many_blanks_as_asked(n, share, kind):
    blank = hide(n, share, kind, generator=torch.Generator().manual_seed(0))
    assert int(blank.sum()) == max(1, round(share * n))


def test_spans_hang_together():
    blank = hide(160, 0.3, "spans", generator=torch.Generator().manual_seed(0))
    starts = int((blank[1:] & ~blank[:-1]).sum()) + int(blank[0])
    assert starts <= 48 / 8


def text(rows: int = 2, n: int = 12) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, n), generator=torch.Generator().manual_seed(1))


def test_left_context_equals_the_left_to_right_likelihood():
    model, tokens = tiny_armd(), text()
    blank = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(2)) < 0.4
    with torch.no_grad():
        whole = armd.log_likelihood(model, tokens, armd.order.left_to_right(12))
    found = fill_blanks(model, tokens, blank, full=False)
    assert found.log_p.tolist() == pytest.approx(whole[blank].tolist(), abs=1e-5)


def test_full_context_is_a_difference_of_two_likelihoods():
    # log p(blanks | known) = log p(known, blanks) - log p(known), each as a plain likelihood
    model, tokens = tiny_armd(), text(rows=1)
    blank = torch.zeros(1, 12, dtype=torch.bool)
    blank[0, [0, 3, 4, 9]] = True
    order = armd.order.infill(~blank)
    with torch.no_grad():
        parts = armd.log_likelihood(model, tokens, order)[0]
    found = fill_blanks(model, tokens, blank, full=True)
    assert found.log_p.sum().item() == pytest.approx(parts[8:].sum().item(), abs=1e-5)


def test_left_context_is_blind_to_the_right_and_full_context_is_not():
    model, tokens = tiny_armd(), text(rows=1)
    blank = torch.zeros(1, 12, dtype=torch.bool)
    blank[0, 4:6] = True
    other = tokens.clone()
    other[0, 6:] = (other[0, 6:] + 1) % VOCABULARY
    left = [fill_blanks(model, t, blank, full=False).log_p for t in (tokens, other)]
    both = [fill_blanks(model, t, blank, full=True).log_p for t in (tokens, other)]
    assert torch.equal(*left)
    assert not torch.allclose(*both)


def test_an_exact_match_is_when_greedy_filling_returns_the_text(unchecked):
    model, tokens = tiny_armd(), text(rows=4)
    blank = torch.zeros(4, 12, dtype=torch.bool)
    blank[:, 3:7] = True
    filled = armd.infill(model, tokens, ~blank, temperature=0.0)
    assert fill_blanks(model, filled, blank, full=True).whole.all()
    greedy = (filled == tokens).all(1)
    assert torch.equal(fill_blanks(model, tokens, blank, full=True).whole, greedy)


def test_the_verb_compares_both_sides_and_refuses_other_models(tmp_path, capsys, unchecked):
    file = tmp_path / "text.txt"
    file.write_text("some words of text, again and again\n" * 20)
    model, out = saved(tiny_armd(), tmp_path / "model"), tmp_path / "out.json"
    made = eval_infill(model, data=str(file), windows=3, window=32, json=out, batch=2)
    alone = eval_infill(model, data=str(file), windows=3, window=32, batch=1)
    assert [row["blanks"] for row in made] == ["tokens"] * 3 + ["spans"] * 3
    for one, other in zip(made, alone, strict=True):
        for side in ("left", "both"):
            assert one[side] == pytest.approx(other[side], rel=1e-5)
    assert len(json.loads(out.read_text())["results"]) == 6
    assert "ppl both" in capsys.readouterr().out
    options = {"shares": (0.3,), "windows": 3, "window": 32, "candidates": 4}
    some = eval_infill(model, data=str(file), **options, fill=True)
    assert "candidates" not in some[0] and some[1]["candidates"]["count"] == 4
    drawn, kept = some[1]["both"]["drawn"], some[1]["candidates"]["drawn"]
    assert drawn["fills"] == kept["fills"] == some[1]["both"]["fills"]
    assert "one of 4 candidates" in capsys.readouterr().out
    with pytest.raises(ArmdError, match="--shares names no share"):
        eval_infill(model, data=str(file), shares=())
    with pytest.raises(ArmdError, match="share of 2"):  # before the model is asked for
        eval_infill("none", data=str(file), shares=(0.3, 2.0))
    with pytest.raises(ArmdError, match="candidates 0"):
        eval_infill(model, data=str(file), candidates=0)
    with pytest.raises(ArmdError, match="ARMD model"):
        eval_infill(saved(tiny_gpt2(), tmp_path / "gpt2"), data=str(file))
    with pytest.raises(ArmdError, match="shorter than a window"):
        file.write_text("short")
        eval_infill(model, data=str(file))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=7), st.lists(st.integers(0, 3), max_size=7))
def test_rouge_is_the_longest_common_subsequence(found, wanted):
    subsets = lambda ids: {  # noqa: E731
        tuple(t for k, t in enumerate(ids) if mask >> k & 1) for mask in range(2 ** len(ids))
    }
    longest = max(map(len, subsets(found) & subsets(wanted)))
    assert rouge_l(found, wanted) == 2 * longest / max(1, len(found) + len(wanted))


def test_a_text_that_greedy_filling_wrote_is_filled_exactly():
    """Its own greedy text comes back, by the way that wrote it: spans of known text are kept, and
    each span of blanks is compared with its own place."""
    model, tokens = tiny_armd(), text(rows=1)
    blank = torch.zeros(1, 12, dtype=torch.bool)
    blank[0, [2, 3, 7, 11]] = True
    runs = blanks_of((~blank[0]).tolist())
    assert [run[:2] for run in runs] == [(2, 4), (7, 8), (11, 12)]
    both = armd.infill(model, tokens, ~blank, temperature=0.0)
    found = fill_greedily(model, both, blank)
    assert found["both"] == {"fills": 3, "rouge_l": 1.0, "exact_fills": 1.0}
    left = armd.generate(model, prompt=tokens[:, :2].tolist(), length=12, temperature=0.0)
    assert fill_greedily(model, left, blank)["left"]["exact_fills"] == 1.0
    other = (both + blank) % VOCABULARY
    assert fill_greedily(model, other, blank)["both"]["exact_fills"] < 1.0
