"""The paper by command: every cell of its tables and curves has a run that keeps the step, and a
command; the whole is walked through with tiny models."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from eval_models import saved, tiny_armd, tiny_gpt2

from armd.cli import run
from armd.errors import ArmdError
from armd.eval import paper_tables as paper
from armd.reproduce import paper_page, paper_study
from armd.reproduce.command import reproduce
from armd.reproduce.paper_cells import ALSO_TABLE_3, Cell, cells
from armd.reproduce.paper_options import DATA, PaperOptions
from armd.reproduce.paper_page import write_paper_page
from armd.reproduce.paper_runs import SCALES, K, paper_runs
from armd.reproduce.paper_study import PaperStudy, measured
from armd.reproduce.runs import Study
from armd.reproduce.train_runs import done

EVERY = cells(SCALES["paper"], texts=DATA, judge="gpt2-large", device="cpu")
RUNS = paper_runs(SCALES["paper"])


def printed() -> set[tuple[str, str, str]]:
    """Table, row and column of every figure that the paper prints."""
    found = set()
    zero_shot = {
        "Table 1, small": paper.TABLE_1_SMALL,
        "Table 1, medium": paper.TABLE_1_MEDIUM,
        "Ablation, small": paper.ABLATION_SMALL,
        "Ablation, medium": paper.ABLATION_MEDIUM,
    }
    for table, rows in zero_shot.items():
        found |= {(table, row, title) for row in rows for title in paper.TITLES}
    columns = ("T=1024", "T=512 (S=2)", "T=256 (S=4)")
    for row, values in paper.TABLE_2.items():
        found |= {("Table 2", row, c) for c, v in zip(columns, values, strict=True) if v != "-"}
    for streams in paper.SECONDS_A_SAMPLE:
        found.add(("Table 2, caption", f"seconds a sample, S={streams}", "seconds"))
    found |= {("Table 3", row, "ppl") for row in paper.TABLE_3}
    found |= {("Table 4", row, c) for row in paper.TABLE_4 for c in ("sequences/s", "over AR")}
    for table, curves in (("small", paper.CURVES_SMALL), ("medium", paper.CURVES_MEDIUM)):
        for data, title in zip(paper.DATA, paper.TITLES, strict=True):
            for line, points in curves[data].items():
                found |= {(f"Curves, {table}", f"{line} ({step}K)", title) for step in points}
    return found


def test_every_figure_of_the_paper_has_a_cell():
    protocols = (", lm1b-packed", ", lm1b")
    found = set()
    for cell in EVERY:
        row = cell.row
        for protocol in protocols:
            row = row.removesuffix(protocol) if cell.table == "Table 3" else row
        found.add((cell.table, row, cell.column))
    assert printed() <= found
    assert found - printed() == {("Table 3", row, "ppl") for row in ALSO_TABLE_3}


def test_every_cell_has_a_run_that_keeps_its_step(tmp_path: Path):
    study = Study(SCALES["paper"], tmp_path, tmp_path / "data")
    for cell in EVERY:
        name, step = cell.measure.run, cell.measure.step * K
        if not name or name.startswith("hub:"):
            continue
        recipe = study.placed(RUNS[name])
        recipe.check()
        assert not step or step in recipe.report.keep_at
        assert step <= recipe.curriculum.total


def test_strided_phases_go_on_from_the_same_checkpoint_with_its_state(tmp_path: Path):
    study = Study(SCALES["paper"], tmp_path, tmp_path)
    for base in ("small", "small-rho16"):
        for steps in (10, 50, 80):
            recipe = study.placed(RUNS[f"{base}-sbp{steps}K"])
            assert (recipe.start_step, recipe.start) == (400 * K, str(study.run(base)))
            assert recipe.curriculum.total == (400 + steps) * K
            assert recipe.curriculum.rho == RUNS[base].recipe.curriculum.rho


def test_the_plan_has_hours_and_cost_and_starts_nothing(tmp_path: Path, capsys):
    places: dict[str, Any] = {"out": tmp_path / "out", "results": tmp_path, "docs": tmp_path}
    reproduce(["table2"], scale="paper", **places, paper=PaperOptions(dollars=2.0))
    said = capsys.readouterr().out
    assert "nothing was started" in said and not (tmp_path / "out").exists()
    (small,) = (line for line in said.splitlines() if line.startswith("small  "))
    hours, dollars = small.split()[3:5]
    assert float(dollars.replace(",", "")) == pytest.approx(float(hours) * 16, rel=0.05)
    reproduce([], scale="paper", runs=("medium",), **places)
    said = capsys.readouterr().out
    assert said.startswith("1 runs") and "medium/exports/step-00350000" in said
    with pytest.raises(ArmdError, match="--dollars in"):
        reproduce([], scale="paper", **places, paper=PaperOptions(dollars=float("nan")))
    with pytest.raises(ArmdError, match="did you mean 'table1'"):
        reproduce(["tabel1"], scale="paper", **places)
    with pytest.raises(ArmdError, match="no run 'medum'"):
        reproduce([], scale="paper", runs=("medum",), **places)


WALKED = {
    ("Table 1, small", "ARMD (180K)"),
    ("Table 2", "ARMD (rho=32, SBP 10K)"),
    ("Table 2, caption", "seconds a sample, S=1"),
    ("Table 3", "ARMD (300K), lm1b"),
    ("Table 3", "BD3-LMs L'=4 (1M), lm1b-packed"),
    ("Table 4", "ARMD L2s=9"),
    ("Curves, small", "L2s=6, rho=32 (60K)"),
}


def places_of(folder: Path) -> dict[str, Any]:
    """Datasets, texts and a judge, all tiny."""
    from armd.data.prepare import Preparation, prepare

    lines = [f"Sentence {i} says that {i * i} is a square." for i in range(60)]
    (folder / "text.txt").write_text("\n".join(lines))
    kinds: dict[str, dict[str, int]] = {
        "owt": {},
        "lm1b": {"rows": 16},
        "lm1b-packed": {"wrap": 16},
    }
    for name, how in kinds.items():
        text = {"source": str(folder / "text.txt"), "documents": "line", "heldout": 0.2}
        prepare(Preparation(**text, tokenizer="byte", out=folder / name, workers=1, **how))
    (folder / "test.txt").write_text("\n".join(lines[:5]))
    texts = ",".join(f"{name}={folder / 'test.txt'}" for name in paper.DATA)
    judge = saved(tiny_gpt2(), folder / "judge")
    return {"data": folder, "paper": PaperOptions(yes=True, texts=texts, judge=judge)}


def test_the_study_is_walked_through_with_tiny_models(
    tmp_path: Path, monkeypatch, capsys, unchecked
):
    from armd.train.loop import train

    def chosen(*args: Any, **options: Any) -> list[Cell]:
        some = [cell for cell in cells(*args, **options) if (cell.table, cell.row) in WALKED]
        return [cell for cell in some if cell.column not in ("T=1024", "T=512 (S=2)")]

    def train_here(study: Study, runs: list, **_: Any) -> dict[str, str]:
        for one in runs:
            if not done(study, one):
                train(study.placed(one))
        return {}

    monkeypatch.setattr(paper_study, "cells", chosen)
    monkeypatch.setattr(paper_study, "train_all", train_here)
    where: dict[str, Any] = {"out": tmp_path / "out", "results": tmp_path / "results"}
    where |= {"docs": tmp_path / "docs", "scale": "paper-tiny", **places_of(tmp_path)}
    reproduce([], **where)
    page = (tmp_path / "docs" / "paper-tiny.md").read_text()
    for table in {table for table, _ in WALKED}:
        part = page.split(f"## {table}\n")[1].split("\n## ")[0]
        assert "here [" in part and "not run" not in part, table
    figures = {f: f.stat().st_mtime_ns for f in (tmp_path / "results").rglob("*.json")}
    reproduce([], **where)  # nothing is measured twice
    assert figures == {f: f.stat().st_mtime_ns for f in figures}
    # a cell whose checkpoint is gone says so, and the others stand
    lost = tmp_path / "out" / "paper-tiny" / "runs" / "small" / "exports" / "step-00000003"
    (lost / "model.safetensors").unlink()
    with pytest.raises(ArmdError, match=r"step-00000003 is missing; train small again"):
        reproduce(["table1"], **where)


@pytest.fixture
def judged(tmp_path: Path, monkeypatch):
    """Two measures of models that are there, and a function that measures one of them with a judge
    and a text, and says how many commands were run."""
    export = Path(saved(tiny_armd(), tmp_path / "export"))
    monkeypatch.setattr(Study, "run", lambda study, name: tmp_path)
    monkeypatch.setattr(Study, "export", lambda study, name, step: export)
    ran = []

    def fake_run(words: list[str]) -> None:
        ran.append(words)
        part = {"corpus": len(ran), "corpus_standard_error": 0.5}
        result = {"retokenised": part, "entropy_bits": 1.0, "data": "ptb", "bound": False}
        content = {"results": [result | {"perplexity": len(ran)}]}
        Path(words[-1]).write_text(json.dumps(content))

    monkeypatch.setattr("armd.cli.run", fake_run)

    def study(judge: str = "gpt2-large", text: str = "") -> PaperStudy:
        scale, options = SCALES["paper-tiny"], PaperOptions(judge=judge, texts=text or DATA)
        where = Study(scale, tmp_path, tmp_path)
        return PaperStudy(scale, where, tmp_path / "results", tmp_path / "docs", options)

    def measure(name: str, **made_with: str) -> int:
        paper, before = study(**made_with), len(ran)
        assert measured(paper, paper.measures[name]) is None
        return len(ran) - before

    return study, measure


def test_figures_are_made_again_where_judge_or_text_hold_other_bytes(judged, tmp_path: Path):
    measure, text = judged[1], tmp_path / "text.txt"
    reader = Path(saved(tiny_gpt2(), tmp_path / "judge"))
    text.write_text("some words")
    samples, ppl = "samples-small-sbp10K-streams1", "sedd-small-180K"
    for name, file in ((samples, reader / "model.safetensors"), (ppl, text)):
        how = {"judge": str(reader), "text": f"ptb={text}"}
        assert [measure(name, **how) for _ in range(2)] == [1, 0]
        stat = file.stat()
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert [measure(name, **how) for _ in range(2)] == [1, 0]
    note = tmp_path / "results" / f"{ppl}.command"
    note.write_text(note.read_text().replace("true", "false"))  # as where the command was stopped
    assert [measure(ppl, text=f"ptb={text}") for _ in range(2)] == [1, 0]


def test_figures_stay_until_those_of_another_judge_are_whole(judged, tmp_path: Path, monkeypatch):
    (study, measure), name = judged, "samples-small-sbp10K-streams1"
    results, (one, two) = tmp_path / "results", ("gpt2", "gpt2-large")
    measure(name, judge=one)
    before = {file: file.read_bytes() for file in results.iterdir()}
    begun: list[Path] = []

    def stopped(words: list[str]) -> None:
        begun.append(Path(words[-1]))
        begun[-1].write_text("half")
        raise ArmdError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("armd.cli.run", stopped)
        paper = study(judge=two)
        assert [measured(paper, paper.measures[name]) for _ in range(2)] == ["stopped"] * 2
        assert begun[0] == begun[1] and begun[0] not in before  # it goes on with what it began
    assert before.items() <= {file: file.read_bytes() for file in results.iterdir()}.items()
    assert [measure(name, judge=two) for _ in range(2)] == [1, 0]
    assert {file: file.read_bytes() for file in results.iterdir()}.keys() == before.keys()
    assert all(file.read_bytes() != said for file, said in before.items())


def test_the_page_prints_the_commands_that_made_its_figures(judged, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(paper_page, "draw_curves", lambda *_: None)
    (study, measure), judges = judged, []
    for name in ("one", "two"):
        judges.append(saved(tiny_gpt2(), tmp_path / name))
    samples = [f"samples-small-sbp10K-streams{streams}" for streams in (1, 2)]
    for name, reader in zip(samples, judges, strict=True):
        measure(name, judge=reader)
    page = write_paper_page(study()).read_text()  # whatever the present options say
    said = [line for line in page.splitlines() if f"{samples[0]}.json" in line]
    assert f"--judge {judges[0]} " in said[0] and "gpt2-large" not in said[0]
    assert "Not to be compared" not in page  # another name, the same judge
    with (Path(judges[1]) / "config.json").open("a") as file:
        file.write(" ")
    measure(samples[1], judge=judges[1])
    (note,) = (x for x in write_paper_page(study()).read_text().splitlines() if "compared" in x)
    assert judges[0] in note and judges[1] in note and "judge is not the same" in note


def test_a_folder_without_the_datasets_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setattr(paper_study, "walk", lambda *_, **__: pytest.fail("too late"))
    places: dict[str, Any] = {"out": tmp_path / "out", "results": tmp_path, "docs": tmp_path}
    with pytest.raises(ArmdError, match=r"no dataset owt; .*a folder of datasets"):
        reproduce(
            ["table2"], scale="paper-tiny", data=tmp_path, **places, paper=PaperOptions(yes=True)
        )


def test_figures_are_read_with_their_errors():
    (cell,) = (c for c in EVERY if (c.table, c.row) == ("Table 3", "MDLM (1M), lm1b-packed"))
    result = {"data": "lm1b", "perplexity": 31.5, "bound": True, "perplexity_standard_error": 0.2}
    assert cell.read({"results": [result]}) == "≤ 31.50 ± 0.20"
    assert cell.read({"results": []}) is None and cell.published == "≤ 31.78"


def test_the_command_line_prints_the_plan(capsys, tmp_path: Path):
    run(["reproduce", "table3", "--scale", "paper", "--dry-run", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "lm1b-packed-mdlm" in said and "nothing was started" not in said
    assert json.dumps("--protocol lm1b-packed")[1:-1] in said
