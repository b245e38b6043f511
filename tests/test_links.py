"""Law: whatever name in a folder of somebody else's is a link, no verb writes to or removes what it
leads to. The names are those that the verb was seen to open, make or rename in the folder."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from training_help import prepare_corpus, tiny  # noqa: E402

from armd import cli  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.runtime.atomic_folders import new_folder  # noqa: E402
from armd.train.loop import train  # noqa: E402

Verb = Callable[[Path], object]
SEEN: list[str] | None = None


def watch(event: str, args: tuple) -> None:
    if SEEN is not None and event in ("open", "os.mkdir", "os.rename"):
        wrote = event != "open" or (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        paths = args[:2] if event == "os.rename" else args[:1]
        SEEN.extend(os.fsdecode(path) for path in paths if wrote and not isinstance(path, int))


sys.addaudithook(watch)


@contextmanager
def watched() -> Iterator[list[str]]:
    global SEEN
    SEEN = []
    try:
        yield SEEN
    finally:
        SEEN = None


@dataclass(frozen=True)
class Started:
    """A folder before the verb, and the verb, given where the copy of that folder lies."""

    folder: Path
    verb: Verb

    def names(self, copy: Path) -> list[str]:
        """What the verb makes or opens in folders that are not new, once each: with another number
        of steps or of a process it is the same code."""
        shutil.copytree(self.folder, copy)
        before = {path for path in (copy, *copy.rglob("*")) if path.is_dir()}
        with watched() as seen:
            self.verb(copy)
        shutil.rmtree(copy)
        found = {path for path in map(Path, seen) if path.parent in before and path not in before}
        made = {path.relative_to(copy).as_posix() for path in found}
        return sorted(made | {path.relative_to(copy).as_posix() for path in before - {copy}})

    def try_links(self, names: list[str], copy: Path, victim: Path) -> None:
        shutil.copytree(self.folder, copy)
        for name in names:
            place = copy / name
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
            place.symlink_to(victim)
        try:
            self.verb(copy)
        finally:
            shutil.rmtree(copy)


def state(folder: Path) -> dict[str, str]:
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for name, path in files.items()
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def holds(started: Started, tmp_path: Path, *, least: set[str]) -> None:
    names = started.names(tmp_path / "copy")
    assert least <= set(names), names
    victims = {"file": tmp_path / "file" / "mine", "folder": tmp_path / "folder"}
    for victim in victims.values():
        victim.parent.mkdir(exist_ok=True)
    victims["file"].write_text("years of work")
    (victims["folder"] / "step-00000002").mkdir(parents=True)
    (victims["folder"] / "step-00000002" / "config.json").write_text("mine")
    kept = {kind: state(tmp_path / kind) for kind in victims}
    # what is only there for a moment is replaced, so that one trial does for all of it
    brief = [name for name in names if Path(name).name.startswith(".") and "lock" not in name]
    for some in (brief, *([name] for name in names if name not in brief)):
        for kind, victim in victims.items():
            if some is not brief and (Path(some[0]).suffix != "") != (kind == "file"):
                continue  # a folder's name where a file leads, or the other way, says little
            with nullcontext() if some is brief else suppress(ArmdError, SystemExit, OSError):
                started.try_links(some, tmp_path / "copy", victim)
            assert state(tmp_path / kind) == kept[kind], f"one of {some} was followed to a {kind}"


def test_train(data: Path, tmp_path: Path) -> None:
    sizes = {"steps": 2, "i_ar": 1, "i_perm": 2, "sbp_steps": 0, "rho": 2}
    report = {"checkpoint_every": 1, "validate_every": 0, "sample_every": 2, "keep_at": (1, 2)}

    def go(run: Path) -> None:
        train(tiny(data, run, **sizes, **report))

    begun = tmp_path / "begun"
    go(begun)
    for name in ("checkpoints/step-00000002", "exports/step-00000002", "export"):
        shutil.rmtree(begun / name)
    shutil.rmtree(begun / "samples")
    (begun / "samples").mkdir()
    least = {"samples", "exports", "export", "checkpoints", ".export.tmp", "metrics.jsonl"}
    least |= {"samples/step-00000002.txt", "exports/.step-00000002.tmp", ".lock"}
    holds(Started(begun, go), tmp_path, least=least)


VERBS = {
    "prepare": ("prepare", "corpus.jsonl", "--tokenizer", "byte", "--workers", 1, "--out", "out"),
    "generate": ("generate", "MODEL", "--length", 8, "--out", "out.jsonl", "--json", "f.json"),
    "plot": ("plot", "order", "--length", 8, "--out", "order.png"),
}
"""Of convert and quantize, what test_a_new_folder tries is what writes."""


@pytest.mark.parametrize("verb", VERBS)
def test_verbs(
    verb: str, data: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(data.parent / "corpus.jsonl", begun)

    def go(folder: Path) -> None:
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            cli.run([str(saved) if word == "MODEL" else str(word) for word in VERBS[verb]])

    holds(Started(begun, go), tmp_path, least=set())


def test_a_new_folder(tmp_path: Path) -> None:
    def go(folder: Path) -> None:
        with new_folder(folder / "out") as aside:
            (aside / "config.json").write_text("new")

    (tmp_path / "begun").mkdir()
    holds(Started(tmp_path / "begun", go), tmp_path, least={"out", ".out.tmp", ".out.lock"})
