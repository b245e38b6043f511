"""Every kind of order draws itself; mistakes are named."""

import os
import subprocess
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
        (["--kind", "infill", "--known", "²"], "write them as 0,1,5"),
        (["--kind", "infill", "--length", "0"], "give 1 to 2048"),
        (["--length", "0"], "give 1 to 2048"),
        (["--length", "3000"], "give 1 to 2048"),
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


def test_a_notebooks_backend_ends_no_picture(tmp_path: Path) -> None:
    """Notebooks set it for the commands that they start."""
    out = tmp_path / "order.png"
    words = [sys.executable, "-m", "armd.cli", "plot", "order", "--length", "4", "--out", str(out)]
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.none"}
    subprocess.run(words, env=environment, check=True, capture_output=True)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_cells_are_drawn_at_once_and_each_has_its_colour() -> None:
    """One by one, the cells of a long text take minutes."""
    from types import SimpleNamespace

    from matplotlib.colors import to_rgba

    import armd
    from armd.model.attention_inputs import block_limits
    from armd.plots import orders, rows, streams

    steps = [None, 1, 0, 1, 2]
    written, letters = SimpleNamespace(ids=[97] * 5, steps=steps), lambda ids: "a" * len(ids)
    (axes,) = streams.draw_landing(written, 3, letters).axes
    (drawn,) = axes.collections
    assert not axes.patches
    for row, colours in enumerate(drawn.get_array()):
        for step, colour in zip(steps, colours, strict=True):
            late = step is not None and step >= row
            own = streams.GIVEN if step is None else orders.colour_of(step, 3)
            assert tuple(colour) == to_rgba(orders.MASKED if late else own)
    axes, order = orders.pyplot_or_error().figure().subplots(), armd.order.strided(12, 3)
    rows.draw_rows(axes, order, "")
    context, extra = (part.get_array() for part in axes.collections)
    assert not axes.patches and len(extra)
    seen = (context != to_rgba(orders.MASKED)).any(-1).sum(-1).tolist()
    assert seen == block_limits(order.rows(1))[1][0].tolist()
