"""The texts to score: benchmarks by name from the hub, or any local file or folder, row by row."""

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from ..data.formats import (
    Reading,
    decoded,
    file_format,
    read_documents,
    said_in_a_line,
    unpacked,
)
from ..data.hub import PARQUET, hub_rows, require_hub
from ..data.manifest import MANIFEST
from ..data.sources import digest
from ..errors import ArmdError, first_line
from ..runtime.atomic_files import hash_file
from .detokenize import DETOKENIZERS, plain
from .windows import documents

# name -> hub data set, configuration, column, revision
HUB = {
    "lambada": ("EleutherAI/lambada_openai", "default", "text", None),
    "wikitext2": ("Salesforce/wikitext", "wikitext-2-raw-v1", "text", None),
    "wikitext103": ("Salesforce/wikitext", "wikitext-103-raw-v1", "text", None),
    "ptb": ("ptb-text-only/ptb_text_only", "penn_treebank", "sentence", PARQUET),
    "lm1b": ("billion-word-benchmark/lm1b", "plain_text", "text", PARQUET),
}
SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"valid", "validation", "val", "dev", "devel", "development"},
    "test": {"test", "testing", "heldout", "held"},
}
"""What a file's name says, as a word of its own: "greatest" is no test."""
Detokenizers = Mapping[str, Callable[[str], str]]
END = "<|endoftext|>"
ROWS = (".jsonl", ".parquet")
"""Formats that hold texts in rows, line ends in them."""
DOCUMENT_MARK = re.compile(rf"<doc [^>]*>|</doc>|{re.escape(END)}")


@dataclass(frozen=True)
class Corpus:
    """A text to score, in rows, which can be read again and again."""

    name: str
    split: str
    source: str
    fingerprint: str
    """Changes when the text does."""
    read: Callable[[], Iterator[str]]
    detokenize: Callable[[str], str]
    check: Callable[[], None] = lambda: None
    """Raises if the text is no longer the one that `fingerprint` is of: to be called when it was
    scored, because it need not be read to its end."""
    ends: bool = True
    """Every row is a text; False: rows are lines of running text, and None ends a document."""

    def rows(self) -> Iterator[str | None]:
        """Detokenised rows; in running text, None where one text ends and the next begins."""
        if self.ends:
            yield from map(self.detokenize, self.read())
        else:
            yield from running(self.read())


def running(lines: Iterator[str]) -> Iterator[str | None]:
    """Lines of running text, their ends kept; a mark between documents becomes None. What stands
    behind it on its line is text."""
    for line in lines:
        while mark := DOCUMENT_MARK.match(line):
            yield None
            line = line[mark.end() :]
            if not line.strip():
                break
        else:
            yield line


def find_corpora(
    words: str, splits: dict[str, str], rules: Detokenizers = DETOKENIZERS
) -> list[Corpus]:
    """`lambada,ptb=PATH,PATH`: names, names with a place, or places alone."""
    texts = apart(words)
    for word in texts:
        check_there(word, words)
    found = [find_corpus(word, splits, rules) for word in texts]
    if not found:
        raise ArmdError(f"--data '{words}' names nothing; give {', '.join(HUB)} or name=PATH")
    names = [corpus.name for corpus in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ArmdError(f"--data names {min(twice)} twice; name each, as in a=PATH,b=PATH")
    return found


def apart(words: str) -> list[str]:
    """The words between commas; one in a path that is there is a part of it."""
    parts, found = words.split(","), []
    while parts:
        joined = (",".join(parts[:count]).strip() for count in range(len(parts), 1, -1))
        word = next((one for one in joined if is_there(one)), parts[0].strip())
        found.append(word)
        parts = parts[1 + word.count(",") :]
    return [word for word in found if word]


def is_there(word: str) -> bool:
    """Whether it is a path, or name=PATH; no name has a comma."""
    name, _, place = word.partition("=")
    return os.path.exists(word) or ("," not in name and os.path.exists(place))


def check_there(word: str, words: str) -> None:
    """Raise, and say how `words` were read, unless this one is a name of a data set, or there."""
    name, _, place = word.partition("=")
    if is_there(word) or (name in HUB and not place):
        return
    said = f"no data set '{name}'; use {', '.join(HUB)}, or {name}=PATH with a file or folder"
    if place:
        said = f"no file or folder {place} for data set {name}, and no path '{word}'"
    read = f" (commas part texts, as '{words}' is no path)" if "," in words else ""
    raise ArmdError(said + read)


def find_corpus(word: str, splits: dict[str, str], rules: Detokenizers) -> Corpus:
    name, _, place = word.partition("=")
    if name in HUB and not place:
        return from_hub(name, splits[name], rules)
    if os.path.exists(word):
        name, place = Path(word).stem, word
    return local(name, Path(place), splits.get(name, "test"), rules)


def local(name: str, path: Path, split: str, rules: Detokenizers) -> Corpus:
    """A file as it is, or of a folder the files that its names say are of this split."""
    if (path / MANIFEST).is_file():
        raise ArmdError(f"{path} holds tokens that armd prepare made; name the text itself")
    files, split = ((path,), path.name) if path.is_file() else split_files(name, path, split)
    plain_text = {file: name not in HUB and file_format(file) not in ROWS for file in files}
    running_text = all(plain_text.values())

    known = content(files)
    mixed = any(plain_text.values()) and not running_text  # earlier versions read lines as rows

    def check() -> None:
        if content(files) != known:
            raise ArmdError(f"{path} was changed while it was read; give the command again")

    def read() -> Iterator[str]:
        for file in files:
            rows = rows_of(name, file)
            if plain_text[file]:
                rows = chain(rows, [END])  # one file's text ends here
            yield from rows if running_text or not plain_text[file] else texts_in(rows)

    return Corpus(
        name,
        split,
        str(path),
        f"{known} (each text whole)" if mixed else known,
        read,
        rules.get(name, plain),
        check,
        ends=not running_text,
    )


def texts_in(lines: Iterator[str]) -> Iterator[str]:
    """The documents of running text as rows, for a folder that has files of rows, too."""
    return (text for text in documents(running(lines)) if text is not None)


def content(files: tuple[Path, ...]) -> str:
    """Changes when a name or a byte of the files does."""
    try:
        return f"content:{digest(f'{file.name} {hash_file(file)}' for file in files)}"
    except OSError as error:
        raise ArmdError(f"cannot read {error.filename}: {error.strerror}") from None


def split_files(name: str, folder: Path, split: str) -> tuple[tuple[Path, ...], str]:
    """The files of a split by their names, or all where no name says one; nothing hidden. Raises
    where a folder in it, or a link to nothing, would have to be read with them."""
    there = sorted(p for p in folder.iterdir() if p.name[0] != "." and p.suffix != ".md")
    if not there:
        raise ArmdError(f"no file in {folder} for data set {name}")
    words = {path: set(re.split("[^a-z]+", path.name.lower())) for path in there}
    named = [p for p in there if p.is_file() and words[p] & set().union(*SPLIT_WORDS.values())]
    chosen = [p for p in there if words[p] & SPLIT_WORDS[split]]
    if not named:
        chosen, split = there, "all files"
    if unread := [p for p in chosen if not p.is_file()]:
        kind = "a folder" if unread[0].is_dir() else "a link to nothing, or a pipe"
        raise ArmdError(
            f"{unread[0]} is {kind}, and of {folder} only files are read; name one of them, or a "
            "folder of files alone"
        )
    if name == "lambada":  # the OpenAI form, original case and line breaks, where it is there
        chosen = [f for f in chosen if file_format(f) == ".jsonl"] or chosen
    if not chosen:
        raise ArmdError(
            f"{folder} has no {split} split of {name}, which the protocol asks for; "
            f"{name}=FILE scores one file whatever its split"
        )
    return tuple(chosen), split


def rows_of(name: str, file: Path) -> Iterator[str]:
    """The rows of one file, as the hub's version of the data set has them: empty rows too."""
    column = "sentence" if name == "ptb" and file_format(file) == ".parquet" else "text"
    try:
        if file_format(file) in ROWS:
            found = read_documents(file, Reading(field=column), empty=name in HUB)
            yield from (document.text for document in found)
        elif name in HUB:
            yield from map(partial(benchmark_row, name), lines(file))
        else:
            yield from lines(file)
    except ArmdError as error:
        if " --" not in str(error) and "(--" not in str(error):
            raise
        raise ArmdError(
            f"{error} (an option of armd prepare; here, give UTF-8 text, or a field '{column}')"
        ) from None


def benchmark_row(name: str, line: str) -> str:
    if not line.strip():
        return ""
    return line.replace("\r\n", "\n") if name.startswith("wikitext") else line.strip()


def lines(file: Path) -> Iterator[str]:
    """The lines of a text with their ends, as armd prepare reads them."""
    offset = 0
    with said_in_a_line(file), file.open("rb") as raw, unpacked(file, raw) as stream:
        for data in io.BufferedReader(stream):  # type: ignore[arg-type]
            yield decoded(file, offset, data, replace_invalid=False)
            offset += len(data)


def from_hub(name: str, split: str, rules: Detokenizers) -> Corpus:
    place, configuration, column, revision = HUB[name]
    if os.path.lexists(place):
        raise ArmdError(
            f"{place} in the working folder would be read in place of the hub's data set; give it "
            f"by name, as --data {name}=PATH, or work elsewhere"
        )
    require_hub(f"data set {name}", f"give a local copy, as --data {name}=PATH")

    def read() -> Iterator[str]:
        try:
            for row in hub_rows(place, configuration, split, revision):
                yield row[column]
        except Exception as error:  # datasets raises whatever its readers raise
            reason = first_line(error)
            raise ArmdError(
                f"cannot read {place} ({reason}); give a local copy, as --data {name}=PATH"
            ) from None

    return Corpus(name, split, f"hf:{place}", f"hf:{place}", read, rules[name])
