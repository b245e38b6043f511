"""A study's figures are of the dataset that it was given: runs of another one are refused, and what
was measured on another one is measured again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from armd.data.dataset import open_dataset
from armd.data.prepare import Preparation, prepare
from armd.errors import ArmdError
from armd.reproduce import ablations, generation, perplexity, price, train_runs
from armd.reproduce.command import reproduce
from armd.reproduce.result_file import Findings
from armd.reproduce.runs import Study, Trained
from armd.reproduce.scale import tiny
from armd.reproduce.train_runs import train_all
from armd.reproduce.uncertainty import seeds_of
from armd.train.run_folder import DATA, data_facts, with_sum


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets one and two, of other texts, and again, the first one in another place."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("one", "two"):
        text = folder / f"{name}.txt"
        text.write_text(
            "\n\n".join(f"Sentence {i} of {name}. It says {i * i}." for i in range(200))
        )
        how: dict[str, Any] = {"tokenizer": "byte", "documents": "blank", "heldout": 0.5}
        prepare(Preparation(str(text), **how, workers=1, out=folder / name))
    shutil.copytree(folder / "one", folder / "again")
    return folder


def trained_on(folder: Path, name: str, dataset: Path) -> None:
    """What a run says of its dataset stands for the run."""
    run = folder / "runs" / name
    run.mkdir(parents=True)
    facts = with_sum(data_facts(open_dataset(dataset)))
    (run / DATA).write_text(json.dumps(facts))


def test_runs_of_another_dataset_are_no_part_of_a_study(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_on(tmp_path, "armd", data / "one")
    monkeypatch.setattr(train_runs, "done", lambda *_: True)
    runs = [Trained("armd", tiny().base), Trained("not-begun", tiny().base)]
    for same in ("one", "again"):
        assert train_all(Study(tiny(), tmp_path, data / same), runs, jobs=1) == {}
    with pytest.raises(ArmdError, match=r"armd was trained on another dataset .*two; .*--out"):
        train_all(Study(tiny(), tmp_path, data / "two"), runs, jobs=1)


@pytest.mark.parametrize("scale, run, where", [("tiny", "armd", ""), ("paper-tiny", "small", "p")])
def test_a_plan_refuses_them_too(
    data: Path, tmp_path: Path, scale: str, run: str, where: str
) -> None:
    for name in ("owt", "lm1b", "lm1b-packed") if where else ("",):
        shutil.copytree(data / "two", tmp_path / "data" / name)
    trained_on(tmp_path / "out" / ("paper-tiny" if where else ""), run, data / "one")
    with pytest.raises(ArmdError, match=rf"{run} was trained on another dataset"):
        reproduce([], scale=scale, out=tmp_path / "out", data=tmp_path / "data", plan=True)


@pytest.mark.parametrize("plan", [False, True])
def test_what_is_no_dataset_is_refused_before_anything_is_done(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = {"one.txt": "is a file, no dataset; .*armd prepare", "none": "no dataset in .*prepare"}
    for name, said in wrong.items():
        with pytest.raises(ArmdError, match=said) as raised:
            reproduce([], scale="tiny", data=data / name, plan=plan)
        assert "\n" not in str(raised.value)
    assert not any(tmp_path.iterdir())


class Noted(Findings):
    """What its entries are of; nothing is measured."""

    def entry(self, name: str, facts: dict[str, Any], measure: Any) -> dict[str, Any]:
        self.entries[name] = facts
        return {}


@pytest.mark.parametrize("stage", [perplexity, generation, price, ablations])
def test_every_figure_says_which_dataset_it_is_of(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Any
) -> None:
    monkeypatch.setattr(stage, "require", lambda study, name: study.run(name))
    monkeypatch.setattr(stage, "weights_of", lambda folder: {"sha256": folder.name})
    monkeypatch.setattr(stage, "load", lambda folder: None)
    if stage is generation:
        judges = generation.Judges(own=None, large=None, tokenizer=None, most=1)
        monkeypatch.setattr(stage, "load_judges", lambda study: judges)

    def facts_of(dataset: Path) -> dict[str, Any]:
        findings = Noted(tmp_path, "stage", "tiny", "")
        stage.measure(Study(tiny(), tmp_path, dataset), findings)
        return findings.entries

    one, again, two = (facts_of(data / name) for name in ("one", "again", "two"))
    assert one == again and one.keys() == two.keys()
    for name in one:
        assert one[name]["data"] != two[name]["data"]
        assert one[name]["data"] == data_facts(open_dataset(data / "one"))


def test_seeds_of_another_dataset_are_left_out() -> None:
    entries = {
        name: {"facts": {"data": {"tokens": text}}, "figures": {"bound": nats}}
        for name, text, nats in (("ar", "a", 1.0), ("ar-seed1", "a", 2.0), ("ar-seed2", "b", 9.0))
    }
    assert seeds_of(entries, "ar") == [{"bound": 1.0}, {"bound": 2.0}]
