"""The report: ours beside the paper's, what was not run says so, one page that needs no other."""

import json
import re

import pytest

from armd.errors import ArmdError
from armd.eval import paper_tables as paper
from armd.eval.report import report

SETTINGS = {"model": "mine", "protocol": "sedd", "order": "left-to-right", "window": 1024}
PPL = {"data": "ptb", "perplexity": 12.345, "bound": False, "settings": SETTINGS}
BOUND = PPL | {"bound": True, "settings": SETTINGS | {"order": "random"}, "command": "armd <eval>"}


def test_nothing_run_says_so_in_every_table(tmp_path):
    report((tmp_path,), out=tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.count("| ours | not run |") == 7
    assert "45.35" in text and "22.36" in text and "1.22x" in text


def test_ours_stand_beside_the_papers(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"kind": "ppl", "results": [PPL, BOUND]}))
    bench = {"model": "ARMD L2s=6", "length": 256, "tokens_per_second": 512.0, "ratio_to_ar": 1.2}
    (tmp_path / "b.json").write_text(json.dumps({"settings": {"device": "cpu"}, "rows": [bench]}))
    (tmp_path / "config.json").write_text("[1, 2]")
    lines = [{"step": 1, "loss": 5.0}, {"step": 2, "heldout": {"left to right": 4.0}}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 3')
    report((tmp_path,), out=tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert (
        "| ours: mine (sedd, left-to-right, window 1024) [1] | not run | not run | 12.35 |" in text
    )
    assert "(sedd, random, window 1024) [2] | not run | not run | ≤12.35 |" in text
    assert "| ours: ARMD L2s=6 (N=256, cpu) [3] | 2.00 | 1.20x |" in text
    assert "\n2. `armd <eval>`" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'href="#how-2"' in page and 'id="how-2"' in page
    assert "armd &lt;eval&gt;" in page and "held-out, left to right" in page
    links = re.findall(r'(?:src|href)="[^#"][^"]*"|@import|<script', page)
    assert links == []


def test_a_place_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ArmdError, match="no file or folder"):
        report((tmp_path / "none",), out=tmp_path)


def test_the_papers_figures_agree_with_each_other():
    # the ablation table, Table 1 and the curves print some figures twice
    for name in ("180K", "400K"):
        assert (
            paper.TABLE_1_SMALL[f"ARMD ({name})"] == paper.ABLATION_SMALL[f"L2s=6, rho=32 ({name})"]
        )
    for table, curves in (
        (paper.ABLATION_SMALL, paper.CURVES_SMALL),
        (paper.ABLATION_MEDIUM, paper.CURVES_MEDIUM),
    ):
        for name, scores in table.items():
            curve, steps = name.split(" (")
            for data, score in zip(paper.DATA, scores, strict=True):
                point = curves[data][curve].get(int(steps[:-2]))
                assert point is None or point == score, (name, data)
