"""Which command, model, judge and texts made a result file of the paper's study. It is noted beside
the file, so that figures are used again, and described, as what they are."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..convert.smollm2 import package_file
from ..eval.corpora import HUB, apart, content, find_corpus, is_there
from ..eval.detokenize import DETOKENIZERS
from ..eval.judge import OFFLINE
from ..eval.windows import PROTOCOLS
from ..pretrained import model_digest
from ..runtime.atomic_files import replace_text

READ = (".safetensors", ".json", ".txt", ".model")
"""Files of a judge's folder that say what it computes."""
Origin = dict[str, Any]


def origin_of(words: list[str], model: Path | None) -> Origin:
    """Of the words of a command: itself, and what it reads by content. A name of the hub stands for
    its content."""
    given = dict(pairwise(words))
    found: Origin = {"command": shlex.join(["armd", *words])}
    if model is not None:
        found["model"] = model_digest(model)
    if "--judge" in given:
        found["judge"] = judge_content(given["--judge"])
    if "--protocol" in given:
        splits = PROTOCOLS[given["--protocol"]].splits
        found["texts"] = dict(text_content(word, splits) for word in apart(given["--data"]))
    return found


def judge_content(name: str) -> str:
    place = package_file() if name == OFFLINE else Path(name)
    if place.is_file():
        return f"{name} {content((place,))}"
    if place.is_dir():
        return f"{name} {content(tuple(f for f in sorted(place.iterdir()) if f.suffix in READ))}"
    return name


def text_content(word: str, splits: dict[str, str]) -> tuple[str, str]:
    """Its name, and where it is and what it holds."""
    if word in HUB or not is_there(word):
        return word.partition("=")[0], word
    corpus = find_corpus(word, splits, DETOKENIZERS)
    return corpus.name, f"{corpus.source} {corpus.fingerprint}"


def note_of(file: Path) -> Path:
    return file.with_suffix(".command")


def read_origin(file: Path) -> Origin | None:
    """What is noted beside a result file; earlier versions noted the command in its first line."""
    try:
        said = note_of(file).read_text("utf-8")
    except OSError:
        return None
    try:
        return dict(json.loads(said))
    except (ValueError, TypeError, RecursionError):
        return {"command": said.partition("\n")[0]}


def write_origin(file: Path, origin: Origin, *, done: bool) -> None:
    """Before the command, so that what it writes until it is stopped is known, and after it."""
    said = origin | {"done": done}
    replace_text(note_of(file), json.dumps(said, indent=1, ensure_ascii=False) + "\n")


def place_for(file: Path, origin: Origin) -> Path:
    """Where a command is to write its result: where it began and was stopped; else aside, if
    figures are there that another command, model, judge or text made. They stay until the new ones
    are whole."""
    aside = file.with_suffix(".new.json")
    for place in (aside, file):
        if place.exists() and read_origin(place) == origin | {"done": False}:
            return place
    aside.unlink(missing_ok=True)
    return aside if file.exists() else file


def put_result(place: Path, file: Path, origin: Origin) -> None:
    """The whole result and its note, in place of what was there. Between the two it is noted as one
    that did not end."""
    if place != file:
        write_origin(file, origin, done=False)
        place.replace(file)
        note_of(place).unlink(missing_ok=True)
    write_origin(file, origin, done=True)


def mixed(origins: dict[int, Origin]) -> list[str]:
    """A sentence for each judge or text that is not the same in all results of a table, which have
    these numbers."""
    kinds: dict[str, dict[str, tuple[str, list[int]]]] = {}
    for number, origin in sorted(origins.items()):
        used = {f"text {name}": made for name, made in origin.get("texts", {}).items()}
        if "judge" in origin:
            used["judge"] = origin["judge"]
        for kind, made in used.items():
            same = made.rpartition(" ")[2]  # its content, under whatever name
            kinds.setdefault(kind, {}).setdefault(same, (made, []))[1].append(number)
    return [
        f"Not to be compared with each other: the {kind} is not the same in all rows: "
        + "; ".join(f"{numbers} `{made}`" for made, numbers in of.values())
        for kind, of in kinds.items()
        if len(of) > 1
    ]
