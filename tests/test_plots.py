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
