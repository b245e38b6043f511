"""Laws: settings that other libraries read by themselves change no picture, and one that ends a
library's import is one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from armd.cli_errors import failed_import, refusal_of
from armd.errors import ArmdError
from armd.native.build import own_compiled_graphs

ARMD = (sys.executable, "-c", "import armd.cli; armd.cli.main()")


def called(*words: object, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ARMD, *map(str, words)],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )


def test_a_matplotlibrc_changes_no_picture(tmp_path: Path) -> None:
    """Such as one for papers, which needs a TeX that may not be there."""
    pytest.importorskip("matplotlib")
    drawn = []
    for rc in ("", "text.usetex: True\nlines.marker: zz\nimage.cmap: nosuch\nfont.size: 40\n"):
        (tmp_path / "matplotlibrc").write_text(rc)
        done = called("plot", "order", "--out", "order.svg", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        drawn.append((tmp_path / "order.svg").read_text().count("\n"))
    assert drawn[0] == drawn[1]


def test_a_setting_that_ends_an_import_is_one_line(saved: Path, tmp_path: Path) -> None:
    done = called("generate", saved, "--length", 4, folder=tmp_path, TORCH_LOGS="nonsense")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "armd: torch cannot be imported (Invalid log settings" in done.stderr


def test_compiled_graphs_are_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch unpickles what it finds in its folder, by default in one that anybody may write to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    own_compiled_graphs()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    own_compiled_graphs()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent
    assert folder == tmp_path / "armd" and folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.geteuid()


def test_defects_of_ours_are_not_taken_for_a_library_s(tmp_path: Path) -> None:
    """An error in a function of a library, or in a module of ours that imports, keeps its place."""
    site = tmp_path / "site-packages"
    for name, code in {"one": "def f(): raise KeyError", "two": "import one\none.f()"}.items():
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(code)
    sys.path.insert(0, str(site))
    try:
        import one  # type: ignore[import-not-found]

        with pytest.raises(KeyError) as inside:
            one.f()
        assert failed_import(inside.value) is None
        assert refusal_of(inside.value) is inside.value
        with pytest.raises(KeyError) as importing:
            import two  # type: ignore[import-not-found]  # noqa: F401
        assert failed_import(importing.value) == "two"
        assert isinstance(refusal_of(importing.value), ArmdError)
    finally:
        sys.path.remove(str(site))
        for name in ("one", "two"):
            sys.modules.pop(name, None)
