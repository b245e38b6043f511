"""The compiled library is ours and whole, or is compiled anew; nothing else is ever loaded."""

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from armd.native import build, library

pytestmark = pytest.mark.skipif(
    not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler here"
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "FLAGS", ("-shared", "-fPIC"))
    file = tmp_path / "answer.c"
    file.write_text("int answer(void) { return 42; }\n")
    return file


def answer(file: Path) -> int:
    return ctypes.CDLL(str(file)).answer()


def cut(made: Path) -> None:
    os.truncate(made, made.stat().st_size // 2)


def empty(made: Path) -> None:
    os.truncate(made, 0)


def foreign(made: Path) -> None:
    made.write_bytes(b"\x7fELF" + bytes(4000))


def link(made: Path) -> None:
    elsewhere = made.with_name("elsewhere.so")
    made.rename(elsewhere)
    made.symlink_to(elsewhere)


def writable(made: Path) -> None:
    made.chmod(0o777)


@pytest.mark.parametrize("harm", [cut, empty, foreign, link, writable])
def test_a_file_that_is_not_ours_and_whole_is_compiled_anew(
    source: Path, harm: Callable[[Path], None]
) -> None:
    made = build.library_file([source])
    assert build.is_whole(made) and build.library_file([source]) == made
    harm(made)
    assert not build.is_whole(made)
    again = build.library_file([source])
    assert build.is_whole(again) and not again.is_symlink() and answer(again) == 42


def test_its_folder_is_ours_alone(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "cache" / "armd"
    place.mkdir(parents=True)
    place.chmod(0o777)
    made = build.library_file([source])
    assert made.parent == place and place.stat().st_mode & 0o077 == 0
    shutil.rmtree(place)
    (tmp_path / "evil").mkdir()
    place.symlink_to(tmp_path / "evil")
    assert place not in build.library_file([source]).parents
    assert not list((tmp_path / "evil").iterdir())


def test_no_home_and_no_passwd_entry_works(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nobody)
    monkeypatch.setenv("TMPDIR", str(source.parent))
    monkeypatch.setattr(build.tempfile, "tempdir", None)
    made = build.library_file([source])
    assert source.parent in made.parents and answer(made) == 42


def test_a_pipe_is_no_library_and_a_torn_quote_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(pipe := tmp_path / "armd-0-1.so")
    assert not build.is_whole(pipe)  # and it does not wait for a writer
    monkeypatch.setenv("CC", "gcc 'half")
    with pytest.raises(build.CannotCompile, match="CC"):
        build._compiler()


def test_without_a_compiler_the_reason_is_said_once(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    library.library.cache_clear()
    try:
        assert library.library() is None and library.library() is None
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1 and "no C compiler 'no-such-compiler'" in said[0]
    finally:
        library.library.cache_clear()


def test_a_library_that_lacks_a_function_is_compiled_anew_and_then_given_up(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def other(sources: list[Path], *, anew: bool = False) -> Path:
        calls.append(anew)
        return build.library_file([source], anew=anew)

    monkeypatch.setattr(library, "library_file", other)
    library.library.cache_clear()
    try:
        assert library.library() is None and calls == [False, True]
        assert "undefined symbol" in capsys.readouterr().err
    finally:
        library.library.cache_clear()


def test_what_a_killed_compiler_left_is_removed(source: Path, tmp_path: Path) -> None:
    left = [tmp_path / "cache" / "armd" / f"{build.COMPILING}{name}" for name in ("old", "new")]
    for folder in left:
        folder.mkdir(parents=True)
        folder.parent.chmod(0o700)
    os.utime(left[0], (0, 0))
    assert answer(build.library_file([source])) == 42
    assert [folder.exists() for folder in left] == [False, True]  # the new one may be at work
