"""Figures are printed before they are written, and a file that cannot be written costs none."""

import json
from pathlib import Path
from typing import Any

import pytest
from eval_models import saved, tiny_armd

from armd.errors import ArmdError
from armd.eval import results
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
