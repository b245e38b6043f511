"""Law: pictures are the same whatever a matplotlibrc says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


def test_a_matplotlibrc_changes_no_picture(tmp_path: Path) -> None:
    """Such as one for papers, which needs a TeX that may not be there."""
    drawn = []
    for rc in ("", "text.usetex: True\nlines.marker: zz\nimage.cmap: nosuch\nfont.size: 40\n"):
        (tmp_path / "matplotlibrc").write_text(rc)
        words = [sys.executable, "-c", "import armd.cli; armd.cli.main()", "plot", "order"]
        kept = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
        words += ["--out", "order.svg"]
        done = subprocess.run(words, cwd=tmp_path, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        drawn.append((tmp_path / "order.svg").read_text().count("\n"))
    assert drawn[0] == drawn[1]
