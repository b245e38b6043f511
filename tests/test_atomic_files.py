"""Laws: a file that is replaced is the old one or the new one, and damage is found."""

import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from test_atomic_folders import filled

from armd.runtime.atomic_files import (
    damaged_files,
    hash_file,
    read_text,
    replace_text,
    write_figures,
    write_text,
)
from armd.runtime.atomic_folders import (
    new_folder,
)


def test_every_flipped_cut_or_missing_file_is_named(tmp_path: Path) -> None:
    folder = filled(tmp_path / "export", "weights")
    assert damaged_files(folder) == []
    (folder / "one").write_text("weightt")
    assert damaged_files(folder) == ["one has another checksum"]
    (folder / "two").unlink()
    assert damaged_files(folder) == ["one has another checksum", "two is missing"]
    for content in ("", "[]", "{", "[" * 100_000, '{"a\\u0000b": "x"}', '{"../x": "y"}'):
        write_text(folder / "sha256.json", content)
        assert damaged_files(folder), content


def test_what_is_no_plain_file_is_neither_waited_for_nor_written_to(tmp_path: Path) -> None:
    pipe, zeros = tmp_path / "pipe", tmp_path / "zeros"
    os.mkfifo(pipe)
    zeros.symlink_to("/dev/zero")
    for path in (pipe, zeros, tmp_path):
        for read in (read_text, hash_file):
            with pytest.raises(OSError, match="no plain file"):
                read(path)
    replace_text(pipe, "ours")
    assert read_text(pipe) == "ours"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_whose_exception_was_lost_is_not(tmp_path: Path, number: signal.Signals) -> None:
    """As where it came while Python freed an object."""
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, handler)
    try:
        raised = KeyboardInterrupt if number == signal.SIGINT else SystemExit
        lost = suppress(SystemExit, KeyboardInterrupt)
        with pytest.raises(raised), new_folder(tmp_path / "out"), lost:
            signal.raise_signal(number)
        assert not list(tmp_path.iterdir())
        with new_folder(tmp_path / "out"):
            pass  # the next one is its own
    finally:
        signal.signal(number, before)


def test_a_write_that_fails_leaves_nothing_beside_it(tmp_path: Path, monkeypatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_figures(tmp_path / "a" / "figures.json", {})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_figures(tmp_path / "a" / "figures.json", {"lost": 1})
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["figures.json"]


@pytest.mark.parametrize(("had", "has"), [(0o600, 0o600), (0o444, 0o644), (0o640, 0o640)])
def test_what_lies_around_a_file_that_is_replaced_stays(tmp_path: Path, had: int, has: int) -> None:
    """A folder of the user's that is called as the file is while it is written; who may read, where
    we can go on to write."""
    write_text(file := tmp_path / "figures.json", "old")
    file.chmod(had)
    write_text(file, "new")
    assert file.read_text() == "new" and file.stat().st_mode & 0o777 == has
    (mine := tmp_path / ".figures.json.tmp").mkdir()
    (mine / "thesis").write_text("years of work")
    with pytest.raises(OSError, match="tmp"):
        write_text(file, "newer")
    assert (mine / "thesis").exists() and file.read_text() == "new"
    write_text(long := tmp_path / ("n" * 250 + ".json"), "figures")
    assert long.read_text() == "figures"


@pytest.mark.parametrize("length", [200, 244])
def test_files_with_long_names_are_written_side_by_side(tmp_path: Path, length: int) -> None:
    """Names of which only the start differs: none is written under another's name aside."""
    names = [f"{number}{'n' * length}.json" for number in range(4)]

    def write(name: str) -> None:
        for _ in range(20):
            write_text(tmp_path / name, name)
            assert (tmp_path / name).read_text() == name

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, names))
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_list_of_any_size_is_not_read_whole(tmp_path: Path) -> None:
    folder = filled(tmp_path / "export", "0")
    with (folder / "sha256.json").open("ab") as file:
        file.truncate(2**31)  # a hole, which takes no room
    assert damaged_files(folder) == ["sha256.json cannot be read"]
