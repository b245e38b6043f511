"""Laws: the figure of armd eval ppl is of the order and the options that were asked for."""

from typing import Any

import pytest
from eval_models import saved, tiny_armd

from armd.errors import ArmdError
from armd.eval.perplexity import Scoring
from armd.eval.ppl import eval_ppl


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"order": "strided", "streams": 33}, "--streams 33 must be between 1 and the .* 32 "),
        ({"order": "shuffled", "rho": 33}, "--rho 33 must be between 1 and the window's 32 tokens"),
        ({"streams": 2}, "--streams 2 has no effect with --order left-to-right; leave it out"),
        ({"draws": 2}, "--draws 2 has no effect with --order left-to-right; leave it out"),
        ({"order": "strided", "draws": 2}, "--draws 2 has no effect with --order strided"),
        ({"order": "random", "steps": 9}, "--steps 9 has no effect with --order random"),
    ],
)
def test_what_has_no_effect_or_cannot_be_had_is_refused(
    tmp_path: Any, unchecked: Any, asked: dict[str, Any], said: str
) -> None:
    model = saved(tiny_armd(), tmp_path / "model")
    (tmp_path / "text.txt").write_text("some words of text\n" * 9)
    data: dict[str, Any] = {"data": str(tmp_path / "text.txt"), "window": 32, "device": "cpu"}
    with pytest.raises(ArmdError, match=said):
        eval_ppl(model, scoring=Scoring(**asked), **data)


def test_what_has_an_effect_is_taken(tmp_path: Any, unchecked: Any) -> None:
    """Up to the whole window; the defaults stay."""
    model = saved(tiny_armd(), tmp_path / "model")
    (tmp_path / "text.txt").write_text("some words of text\n" * 9)
    data: dict[str, Any] = {"data": str(tmp_path / "text.txt"), "window": 32, "device": "cpu"}
    cases: list[dict[str, Any]] = [
        {"order": "strided"},
        {"order": "strided", "streams": 32},
        {"order": "shuffled", "rho": 32, "draws": 2},
        {"seed": 3},
    ]
    for asked in cases:
        (found,) = eval_ppl(model, scoring=Scoring(**asked), **data)
        assert found["perplexity"] > 1
