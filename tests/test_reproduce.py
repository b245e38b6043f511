"""The study: it goes on where it was, a failure hides nothing else, its orders are what they say,
and its page is written from the results alone."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import Forked

from armd import order as orders
from armd.errors import ArmdError
from armd.reproduce import price, tables, train_runs
from armd.reproduce.command import check_runs, check_stages, wanted_runs
from armd.reproduce.result_file import STAGES, Findings
from armd.reproduce.results_page import replaced, write_page
from armd.reproduce.runs import Study, Trained
from armd.reproduce.scale import mini, scale, tiny
from armd.reproduce.train_runs import done, train_all
from armd.train.recipe import Recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("study"))


def make_data(folder: Path) -> Path:
    from armd.data.prepare import Preparation, prepare

    text = "\n\n".join(f"Sentence {i} of a little text. It says {i * i}." for i in range(400))
    (folder / "text.txt").write_text(text)
    source = str(folder / "text.txt")
    prepare(
        Preparation(source, tokenizer="byte", documents="blank", heldout=0.2, out=folder / "data")
    )
    return folder / "data"


def test_a_failed_run_stops_no_other(data: Path, tmp_path: Path):
    study = Study(tiny(), tmp_path, data)
    base = tiny().base
    wrong = replace(base, network=replace(base.network, n_heads=3))
    runs = [Trained("wrong", wrong), Trained("after-wrong", base, after="wrong")]
    failed = train_all(study, [*runs, Trained("right", base)], jobs=2)
    assert failed.keys() == {"wrong", "after-wrong"}
    assert done(study, Trained("right", base))
    assert "divisible" in failed["wrong"]


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ArmdError, match="perplexity"):
        check_stages(["perplexty"])
    with pytest.raises(ArmdError, match="mini"):
        scale("mino")


def test_every_run_is_named_once_and_starts_from_one_that_is_there():
    study = Study(mini(), Path("out"), Path("data"))
    runs = wanted_runs(study, ["perplexity", "generation", "price", "ablations"])
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    assert {run.after for run in runs if run.after} <= set(names)
    for run in runs:
        study.placed(run).check()


def test_runs_that_are_named_are_trained_alone_with_their_seeds_and_what_they_start_from():
    study = Study(mini(), Path("out"), Path("data"), only=("armd-neighbor",))
    names = [run.name for run in wanted_runs(study, ["perplexity"])]
    assert names == ["armd-neighbor", "armd-neighbor-seed1", "armd-neighbor-seed2"]
    study = replace(study, only=("neighbor-sbp-20",))
    names = [run.name for run in wanted_runs(study, ["price"])]
    assert names == ["armd-neighbor", "neighbor-sbp-20"]
    assert check_runs(study.only, study.scale, ["price"]) == study.only
    study = replace(study, only=("bd3lm-4-published", "plaid"))
    runs = wanted_runs(study, ["perplexity"])
    assert [run.name for run in runs] == ["mdlm-85", "plaid", "bd3lm-4-published"]
    steps = {run.name: run.recipe.curriculum.total for run in runs}
    assert steps["mdlm-85"] + steps["bd3lm-4-published"] == steps["plaid"]
    for run in runs:
        study.placed(run).check()
    with pytest.raises(ArmdError, match="armd-neighbor"):
        check_runs(("armd-neigbor",), study.scale, ["perplexity"])
    with pytest.raises(ArmdError, match="generation"):
        check_runs(("armd",), study.scale, ["generation"])
    with pytest.raises(ArmdError, match="no run"):  # it goes with its run
        check_runs(("armd-seed1",), study.scale, ["perplexity"])


@pytest.mark.parametrize("words", ["'torchrun", "no-such-launcher -m armd.cli"])
def test_a_launcher_that_is_none_is_refused_before_any_run(tmp_path: Path, words: str):
    study = Study(tiny(), tmp_path, tmp_path / "data")
    with pytest.raises(ArmdError, match="--launch"):
        train_all(study, [Trained("run", Recipe(preset="tiny"))], jobs=1, launch=words)
    assert not (tmp_path / "logs").exists()


def test_streams_that_begin_at_even_places_are_strided():
    for n, s in ((8, 2), (12, 4), (32, 4)):
        heads = [n * i // s for i in range(s)]
        a, b = price.streams_from(heads, n), orders.strided(n, s)
        assert torch.equal(a.position, b.position) and torch.equal(a.block, b.block)


def test_streams_begin_behind_sentences():
    row = torch.tensor([5, 1, 2, 9, 3, 3, 9, 1, 1, 2, 9, 4])
    order = price.from_sentences(row, 2, {9})
    assert order.position[:2].tolist() == [0, 7]
    orders.check(order.position, order.block)


def test_prices_are_shown_with_the_errors_of_paired_windows():
    assert price.paired_error(torch.full((9,), 0.25, dtype=torch.float64)) == 0
    assert price.paired_error(torch.tensor([1.0, 3.0])) == pytest.approx(1.0)
    names = ("S=2", "S=2 one by one", "S=2 from sentences", "S=2 overlap", "left to right")
    figures: dict = dict.fromkeys(names, 4.0)
    assert "±" not in tables.price_table({"armd": {"figures": figures}})
    figures["S=2 errors"] = [0.1, 0.2, 0.3, 0.4]
    assert "+0.0000 ± 0.3000" in tables.price_table({"armd": {"figures": figures}})


class Independent(torch.nn.Module):
    """Its tokens know nothing of each other, so blocks cost nothing and conditionals overlap."""

    def forward(self, tokens, order):
        return SimpleNamespace(logits=torch.zeros(*tokens.shape, 7).expand(*tokens.shape, 7))


def test_overlap_is_one_where_tokens_are_independent():
    tokens = torch.zeros(3, 16, dtype=torch.long)
    together = orders.strided(16, 4)
    found = price.overlap(
        Independent(), [(tokens, tokens == 0)], together, price.one_by_one(together)
    )
    assert found == pytest.approx(1)


@pytest.mark.parametrize("name", ["third-rho-0", "armd-third"])
def test_the_page_of_one_ablation_alone(tmp_path: Path, name: str):
    """What it is compared with may not have been run."""
    findings = Findings(tmp_path / "results", "ablations", "mini", "armd reproduce")
    findings.entry(name, {"step": 1}, lambda: {"left to right": 4.0, "S=2": 4.1})
    write_page(tmp_path / "results", tmp_path / "docs")
    lines = (tmp_path / "docs" / "results.md").read_text().splitlines()
    row = next(line for line in lines if "| 54.6" in line)
    assert row.split(" | ")[2] == ("1.000" if name == "armd-third" else "-")


def test_the_page_keeps_what_a_person_wrote(tmp_path: Path):
    findings = Findings(tmp_path / "results", "ablations", "mini", "armd reproduce")
    findings.entry("armd-third", {"step": 1}, lambda: {"left to right": 4.0, "S=2": 4.1})
    write_page(tmp_path / "results", tmp_path / "docs")
    page = tmp_path / "docs" / "results.md"
    page.write_text(page.read_text().replace("# Results", "# Results\n\nWords of mine."))
    findings.entry("third-rho-0", {"step": 1}, lambda: {"left to right": 3.9, "S=2": 4.5})
    write_page(tmp_path / "results", tmp_path / "docs")
    text = page.read_text()
    assert "Words of mine." in text and "49.4" in text and text.count("rho 0") == 1
    assert replaced(text, "ablations", "new") == replaced(
        replaced(text, "ablations", "old"), "ablations", "new"
    )


@pytest.mark.parametrize(
    "entries",
    [
        {"x": 1},
        ["x"],
        {"ar": {"facts": {}, "figures": {}}},
        {"armd-third": {"facts": {}, "figures": {"left to right": "x"}, "date": ""}},
        {"ar": {"facts": {}, "figures": {"orders": 1}, "date": "2026"}},
    ],
    ids=str,
)
def test_results_that_are_none_are_one_line(tmp_path: Path, entries: object, unchecked: None):
    for stage in STAGES:
        file = tmp_path / f"reproduce-{stage}.json"
        file.write_text(json.dumps({"scale": "mini", "entries": entries}))
        with contextlib.suppress(ArmdError):  # some stages do not look for such an entry
            write_page(tmp_path, tmp_path / "docs")
        file.unlink()
    (tmp_path / "reproduce-price.json").write_text(json.dumps({"scale": [], "entries": {}}))
    with pytest.raises(ArmdError, match="no results of a study"):
        write_page(tmp_path, tmp_path / "docs")


def test_the_published_page_is_what_the_results_say(tmp_path: Path):
    home = Path(__file__).parents[1]
    if not (home / "results" / "reproduce-generation.json").exists():
        pytest.skip("the study's results are not here")
    page = (home / "docs" / "results.md").read_text("utf-8")
    (tmp_path / "results.md").write_text(page, "utf-8")
    write_page(home / "results", tmp_path)
    assert (tmp_path / "results.md").read_text("utf-8") == page


def test_a_run_of_another_recipe_is_not_done(
    data: Path, tmp_path: Path, monkeypatch, unchecked: None
):
    monkeypatch.setattr(train_runs, "subprocess", SimpleNamespace(Popen=Forked))
    study, base = Study(tiny(), tmp_path, data), tiny().base
    assert not train_all(study, [Trained("run", base)], jobs=1)
    assert done(study, Trained("run", base))
    other = replace(base, optimizer=replace(base.optimizer, learning_rate=1.0))
    assert not done(study, Trained("run", other))
    assert "learning_rate" in train_all(study, [Trained("run", other)], jobs=1)["run"]


def test_an_entry_is_measured_again_only_for_other_weights(tmp_path: Path):
    counted = []
    for step in (1, 1, 2):
        findings = Findings(tmp_path, "price", "mini", "")
        findings.entry("armd", {"step": step}, lambda s=step: counted.append(s) or {"x": 1.0})
    assert counted == [1, 2]
    with pytest.raises(ArmdError, match="another folder"):
        Findings(tmp_path, "price", "paper", "")


def test_seeds_are_averaged_in_the_loss():
    entries = {
        name: {"figures": {"left to right": nats}}
        for name, nats in (("ar", 1.0), ("ar-seed1", 2.0), ("ar-third", 9.0))
    }
    assert tables.perplexity_of(entries, "ar") == pytest.approx(2.718281828**1.5)


def test_seeds_of_another_recipe_are_left_out():
    facts = {"steps": 5, "batch": 2, "length": 8}
    entries = {
        "ar": {"facts": facts, "figures": {"left to right": 1.0}},
        "ar-seed1": {"facts": {**facts, "batch": 3}, "figures": {"left to right": 9.0}},
    }
    assert tables.perplexity_of(entries, "ar") == pytest.approx(2.718281828)


def test_a_sampler_that_failed_leaves_the_others_in_the_table():
    figures = {"calls": 65, "temperature": 1.0, "entropy_bits": 6.0, "seconds_a_text": 0.1}
    entries = {
        "sbp-10 S=1": {"facts": {"length": 128}, "figures": {"failed": "out of reach; try"}},
        "sbp-10 S=2": {
            "facts": {"length": 128},
            "figures": {**figures, "own_perplexity": 50.0, "own_error": 0.01},
        },
    }
    table = tables.generation_table(entries)
    assert "out of reach" in table and "50.0" in table


def test_a_stage_with_a_run_that_failed_is_not_measured(data: Path, tmp_path: Path, monkeypatch):
    from armd.reproduce import command as study

    monkeypatch.setattr(study, "train_wanted", lambda *_, **__: {"sbp-10": "no disk"})
    measured = []
    monkeypatch.setattr(study, "measure_stage", lambda _, stage, *__: measured.append(stage) or {})
    with pytest.raises(ArmdError, match=r"needs sbp-10"):
        study.reproduce(
            ["price", "ablations"],
            scale="tiny",
            out=tmp_path / "out",
            results=tmp_path / "results",
            docs=tmp_path / "docs",
            data=data,
        )
    assert measured == ["ablations"]
    with pytest.raises(ArmdError, match="--jobs"):
        study.reproduce([], jobs=-1)


def test_results_name_the_command_but_not_where_it_wrote() -> None:
    from armd.reproduce.command import without_places

    said = "armd reproduce price --out a/b --runs armd ar --results=c --docs d --seeds 4"
    assert without_places(said.split()) == "armd reproduce price --runs armd ar --seeds 4"
