"""The paper's published figures, as we keep them, agree with each other."""

from armd.eval import paper_tables as paper


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
