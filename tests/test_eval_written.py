"""Figures are printed before they are written, and a file that cannot be written costs none."""

import json
from pathlib import Path
from typing import Any

import pytest
from eval_models import saved, tiny_armd

from armd.data.prepare import Preparation, prepare
from armd.errors import ArmdError
from armd.eval import corpora, results
from armd.eval.infill import eval_infill
from armd.eval.perplexity import Scoring
from armd.eval.ppl import eval_ppl
from armd.eval.streams import eval_streams

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("verb", [eval_ppl, eval_streams])
def test_a_full_disk_stops_no_scoring(verb: Any, tmp_path: Path, monkeypatch, capsys) -> None:
    model, file = saved(tiny_armd(), tmp_path / "model"), tmp_path / "out.json"
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"{name} of some words\n" * 9)
    data, heard, write_text = (
        f"{tmp_path / 'one.txt'},{tmp_path / 'two.txt'}",
        [],
        results.write_text,
    )

    def full(*_: Any) -> None:
        heard.append(capsys.readouterr().out)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "write_text", full)
    with pytest.raises(ArmdError, match=r"out.json cannot be written \(No space left on device\)"):
        verb(model, data=data, window=16, json=file)
    assert [said.splitlines()[0][:4] for said in heard] == ["one:", "two:"]
    assert "ppl" in capsys.readouterr().out  # the table of both

    def full_once(place: Path, text: str) -> None:
        monkeypatch.setattr(results, "write_text", write_text)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "write_text", full_once)
    verb(model, data=data, window=16, json=file)  # the second time, there was room for both
    assert len(json.loads(file.read_text())["results"]) == 2


def test_figures_of_another_model_stay_in_the_file(tmp_path: Path) -> None:
    """Of the same model and text, the new ones take the place of the old."""
    one, two = (saved(tiny_armd(), tmp_path / name) for name in ("one", "two"))
    file, text = tmp_path / "out.json", tmp_path / "text.txt"
    text.write_text("some words of a text\n" * 9)
    for model in (one, two, one):
        eval_streams(model, data=str(text), window=16, json=file)
    assert [r["model"] for r in json.loads(file.read_text())["results"]] == [two, one]


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("verb", [eval_ppl, eval_streams, eval_infill])
def test_a_text_that_is_replaced_while_it_is_scored_is_refused(
    verb: Any, limit: int | None, tmp_path: Path, monkeypatch
) -> None:
    """Also where it is not read to its end. Its figure would be kept as the other one's."""
    model, text = saved(tiny_armd(), tmp_path / "model"), tmp_path / "one.txt"
    text.write_text("one of some words\n" * 99)
    read = corpora.rows_of

    def replacing(name: str, file: Path) -> Any:
        yield from read(name, file)
        text.write_text("another text\n" * 99)

    def replacing_first(name: str, file: Path) -> Any:
        rows = list(read(name, file))
        text.write_text("another text\n" * 99)
        yield from rows

    monkeypatch.setattr(corpora, "rows_of", replacing_first if limit else replacing)
    more: dict[str, Any] = {"windows": limit or 999}
    if verb is eval_ppl:
        more = {"scoring": Scoring(limit=limit)}
    with pytest.raises(ArmdError, match=r"one\.txt was changed while it was read"):
        verb(model, data=str(text), window=16, json=tmp_path / "out.json", **more)
    assert not (tmp_path / "out.json").exists()


def test_a_kept_result_that_was_damaged_is_made_anew(tmp_path: Path) -> None:
    model, file = saved(tiny_armd(), tmp_path / "model"), tmp_path / "out.json"
    (tmp_path / "a.txt").write_text("some words of text\n" * 9)
    data = f"lm1b={tmp_path / 'a.txt'}"
    (first,) = eval_ppl(model, data=data, json=file)
    for change in ({"bound": None}, {"seconds": "x"}, {"rows": []}, {"first_token": ...}):
        kept = {name: value for name, value in (first | change).items() if value is not ...}
        if None in change.values():
            del kept["bound"]
        file.write_text(json.dumps({"kind": "ppl", "results": [kept]}))
        (again,) = eval_ppl(model, data=data, json=file)
        assert again["perplexity"] == first["perplexity"] and "bound" in again
        assert len(json.loads(file.read_text())["results"]) == 1
    file.write_text('{"kind": "ppl", "results": {}}')
    with pytest.raises(ArmdError, match="holds no 'ppl' results"):
        eval_ppl(model, data=data, json=file)


def test_a_tokenizer_of_other_tokens_than_the_models_own_is_refused(tmp_path: Path) -> None:
    model = saved(tiny_armd(), tmp_path / "model")
    (tmp_path / "a.txt").write_text("some words of text\n" * 9)
    (tmp_path / "b.txt").write_text("some words\n\nof a text\n\n" * 9)
    options = {"documents": "blank", "heldout": 0.5, "workers": 1}
    prepare(Preparation(str(tmp_path / "b.txt"), "bpe:270", tmp_path / "other", **options))
    with pytest.raises(ArmdError, match="has a tokenizer of its own"):
        eval_ppl(
            model, data=str(tmp_path / "a.txt"), tokenizer=str(tmp_path / "other" / "tokenizer")
        )
