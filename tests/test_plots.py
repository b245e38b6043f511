"""Every kind of order draws itself; mistakes are named."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from armd.cli import run
from armd.errors import ArmdError


@pytest.mark.parametrize("kind", ["strided", "masking", "infill"])
@pytest.mark.parametrize("length", [4, 33])
def test_an_order_is_drawn(kind: str, length: int, tmp_path: Path) -> None:
    out = tmp_path / "order.png"
    run(["plot", "order", "--kind", kind, "--length", str(length), "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--streams", "9"], "streams 9"),
        (["--kind", "infill", "--known", "1,8"], "write them as 0,1,5"),
        (["--length", "0"], "at least one token"),
        (["--length", "3000"], "give 2048 or fewer"),
        (["--out", "nowhere/order.png"], "name a .png"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArmdError, match=message):
        run(["plot", "order", "--out", str(tmp_path / "order.png"), *words])


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ArmdError, match=r"armd\[plots\]"):
        run(["plot", "order", "--out", "order.png"])


def test_the_rows_of_a_pass_are_drawn(tmp_path: Path) -> None:
    out = tmp_path / "rows.png"
    run(["plot", "rows", "--length", "6", "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")


def test_held_out_curves_of_unlike_models_share_a_panel(tmp_path: Path) -> None:
    import json

    from armd.plots.curves import panels_of, read_curves

    kinds = {"ours": ["left to right", "S=4", "random"], "ar": ["left to right"], "mdlm": ["bound"]}
    for run_name, names in kinds.items():
        (tmp_path / run_name).mkdir()
        rows = [{"step": k, "loss": 5.0 - k} for k in (1, 2)]
        rows += [{"step": 2, "heldout": dict.fromkeys(names, 3.0)}]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / run_name / "metrics.jsonl").write_text(lines)
    panels = panels_of({name: read_curves(tmp_path / name, smooth=1) for name in kinds})
    assert {run: curve for run, (curve, _) in panels["held out"].items()} == {
        "ours": "left to right",
        "ar": "left to right",
        "mdlm": "bound",
    }
    assert list(panels) == ["training loss", "held out", "held out, S=4", "held out, random"]
    out = tmp_path / "curves.png"
    run(["plot", *(str(tmp_path / name) for name in kinds), "--out", str(out)])
    width, height = (int.from_bytes(out.read_bytes()[at : at + 4]) for at in (16, 20))
    assert width <= 160 * 10 and height <= 160 * 14  # inches of a page


@pytest.mark.parametrize(
    "row", ['"loss": "x"', '"loss": null', '"heldout": 3', '"heldout": {"a": []}']
)
def test_losses_that_are_no_numbers_are_named(row: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, {row}}}\n')
    with pytest.raises(ArmdError, match="no numbers"):
        run(["plot", str(tmp_path), "--out", str(tmp_path / "curves.png")])


def test_names_of_runs_are_no_formulas(tmp_path: Path) -> None:
    """All of them stand in the legend; a picture and its figures have two names."""
    names = ["_hidden", r"a$\frac$"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    out, runs = tmp_path / "curves.svg", [str(tmp_path / name) for name in names]
    run(["plot", *runs, "--out", str(out)])
    assert all(name in out.read_text() for name in names)
    with pytest.raises(ArmdError, match="a name of its own"):
        run(["plot", *runs, "--out", str(out), "--json", str(out)])
