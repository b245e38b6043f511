"""Every form of text loads, with the rows its data set has; what cannot be read says what to do."""

import gzip
import json
import lzma
import os
from itertools import chain
from pathlib import Path

import pytest

from armd.data.formats import Reading, read_documents
from armd.errors import ArmdError
from armd.eval.corpora import HUB, find_corpora
from armd.eval.load_model import load
from armd.eval.windows import PROTOCOLS, Tally, cut

SPLITS = PROTOCOLS["exact"].splits
DATA = os.environ.get("ARMD_DATA")


def rows(word: str, protocol: str = "exact") -> list[str | None]:
    (corpus,) = find_corpora(word, PROTOCOLS[protocol].splits)
    return list(corpus.rows())


def test_a_folder_gives_the_split_the_protocol_asks_for(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text(f" {split} words \n \n")
    assert rows(f"ptb={tmp_path}") == ["test words", ""]
    assert rows(f"ptb={tmp_path}", "mdlm") == ["valid words", ""]
    assert rows(f"ptb={tmp_path / 'ptb.train.txt'}") == ["train words", ""]


def test_of_a_folder_nothing_is_left_out_but_other_splits(tmp_path):
    """Two data sets in folders of one folder are no data set, and figures of a part mislead."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".gitattributes").write_text("hidden")
    (tmp_path / "deep").mkdir()
    with pytest.raises(ArmdError, match="deep is a folder"):
        rows(str(tmp_path))
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ArmdError, match="deep is a folder"):
        rows(str(tmp_path))
    (tmp_path / "deep").rmdir()
    assert rows(str(tmp_path)) == ["a", None]
    (tmp_path / "disk.txt").symlink_to("/no/such/file")
    with pytest.raises(ArmdError, match=r"disk\.txt is a link to nothing"):
        rows(str(tmp_path))
    (tmp_path / "test.txt").write_text("b")
    (tmp_path / "train-novels").mkdir()  # as LAMBADA has it
    assert rows(str(tmp_path)) == ["b", None]
    (tmp_path / "test").mkdir()
    with pytest.raises(ArmdError, match="test is a folder"):
        rows(str(tmp_path))


def test_wikitext_rows_keep_line_ends_and_empty_rows(tmp_path):
    (tmp_path / "test.txt").write_text(" \n = Title = \n \n A b . \n")
    assert rows(f"wikitext2={tmp_path / 'test.txt'}") == ["", " = Title =\n", "", " A b.\n"]


@pytest.mark.parametrize(("suffix", "opened"), [(".gz", gzip.open), (".xz", lzma.open)])
def test_running_text_may_be_packed(tmp_path, suffix, opened):
    file = tmp_path / f"a.txt{suffix}"
    with opened(file, "wt") as out:
        out.write("one\ntwo\n<doc id=2>\nthree\n")
    assert rows(str(file)) == ["one\n", "two\n", None, "three\n", None]


def test_prepared_tokens_are_no_text(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ArmdError, match="name the text itself"):
        list(find_corpora(str(tmp_path), {}))


def test_a_word_inside_a_word_names_no_split(tmp_path):
    for name in ("greatest-hits.txt", "emma.txt", "devil.txt", "training-shoes.md"):
        (tmp_path / name).write_text(f"{name}\n")
    assert len([row for row in rows(f"books={tmp_path}") if row]) == 3
    (tmp_path / "books_test_1.txt").write_text("chosen\n")
    assert [row for row in rows(f"books={tmp_path}") if row] == ["chosen\n"]


def test_text_on_the_line_of_a_mark_is_text(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(
        "<doc id=1>one\ntwo\n</doc>\n<|endoftext|>three\n<|endoftext|><|endoftext|>\n<doctor\n"
    )
    found = ["one\n", "two\n", "three\n", "<doctor\n"]
    assert [row for row in rows(str(file)) if row is not None] == found
    assert rows(str(file)).count(None) == 6


@pytest.mark.parametrize("form", ["txt", "jsonl", "parquet"])
def test_a_benchmark_has_its_empty_rows_in_every_form(tmp_path, form):
    """They count: an EOS stands behind each."""
    file, texts = tmp_path / f"test.{form}", [" = Title = \n", "", " A b . \n", ""]
    if form == "txt":
        file.write_text("".join(text or "\n" for text in texts))
    elif form == "jsonl":
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": texts}), file)
    assert rows(f"wikitext2={file}") == [" = Title =\n", "", " A b.\n", ""]


def test_running_text_has_the_bytes_that_a_model_learns_from(tmp_path):
    """Line ends of Windows too, as armd prepare keeps them."""
    text = "one\r\ntwo\n\r\nthree\r\n"
    (tmp_path / "book.txt").write_bytes(text.encode())
    learnt = read_documents(tmp_path / "book.txt", Reading("file"))
    assert "".join(d.text for d in learnt) == text
    assert "".join(row or "" for row in rows(str(tmp_path / "book.txt"))) == text


EOS = 0


def scored(place: Path, protocol: str) -> list[list[int]]:
    """The tokens of each window, where each letter is one."""
    (corpus,) = find_corpora(str(place), SPLITS)

    def encode(texts: list[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]

    ends = {"window": 1000, "bos": EOS, "eos": EOS, "running": not corpus.ends}
    found = cut(PROTOCOLS[protocol], corpus.rows(), encode, tally=Tally(), **ends)
    return [window.ids for window in found]


def learnt(place: Path, documents: str) -> list[list[int]]:
    """The same of each document that armd prepare makes."""
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    texts = (d.text for file in files for d in read_documents(file, Reading(documents)))
    return [[*map(ord, text), EOS] for text in texts if text.strip()]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_scored_is_what_is_learnt(tmp_path: Path, end: str) -> None:
    """Of a text, a folder of texts and rows, and a text whose lines are documents."""
    book, folder = tmp_path / "b.txt", tmp_path
    book.write_bytes(f"one two{end}{end}three {end}four".encode())
    assert scored(book, "exact") == learnt(book, "file")
    assert scored(book, "rows") == learnt(book, "line")
    (folder / "a.jsonl").write_text(json.dumps({"text": f"a row{end}of two lines"}))
    (folder / "c.txt").write_bytes(f"five{end}".encode())
    assert len(learnt(folder, "file")) == 3
    assert scored(folder, "exact") == [list(chain(*learnt(folder, "file")))]


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress], ids=["gz", "xz"])
@pytest.mark.parametrize("how", ["flipped", "cut", "not packed"])
def test_a_damaged_file_is_said_in_a_line(tmp_path, packed, how):
    data = packed(bytes(range(32, 127)) * 9 + b"some words" * 99)
    middle = len(data) // 2
    damaged = {
        "flipped": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        "cut": data[:middle],
        "not packed": b"just some text\n",
    }
    file = tmp_path / f"book.txt.{'gz' if packed is gzip.compress else 'xz'}"
    file.write_bytes(damaged[how])
    with pytest.raises(ArmdError, match=r"book\.txt"):
        rows(str(file))


def test_no_option_is_named_that_there_is_not(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "body.jsonl").write_text('{"body": "words"}')
    for name in ("latin.txt", "body.jsonl"):
        with pytest.raises(ArmdError, match="an option of armd prepare; here, give UTF-8 text"):
            rows(str(tmp_path / name))


def test_json_lines_are_rows(tmp_path):
    file = tmp_path / "lambada_test.jsonl"
    file.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("a \u201cb\u201d ", "c")))
    assert rows(f"lambada={tmp_path}") == ['\na "b"', "\nc"]


def test_bad_places_are_named(tmp_path):
    for word, said in [
        ("wikitext9", "no data set 'wikitext9'"),
        ("ptb=/no/such/file", "no file or folder"),
        ("", "names nothing"),
    ]:
        with pytest.raises(ArmdError, match=said):
            find_corpora(word, SPLITS)
    (tmp_path / "wiki.test.raw").write_text("a")
    with pytest.raises(ArmdError, match="no train split"):
        find_corpora(f"wikitext2={tmp_path}", PROTOCOLS["sedd"].splits)


def test_paths_with_the_marks_of_the_option_are_found_whole(tmp_path, monkeypatch):
    """A comma parts texts and = follows a name, unless the whole is a path that is there."""
    monkeypatch.chdir(tmp_path)
    for name in ("a,b.txt", "k=1,l=2.txt", "c.txt"):
        (tmp_path / name).write_text(name)
    for words, names in (
        ("a,b.txt", ["a,b"]),
        ("k=1,l=2.txt", ["k=1,l=2"]),
        ("c.txt, a,b.txt,ptb=k=1,l=2.txt", ["c", "a,b", "ptb"]),
        ("x=a,b.txt,c.txt,", ["x", "c"]),
    ):
        assert [corpus.name for corpus in find_corpora(words, SPLITS)] == names
    assert rows("k=1,l=2.txt") == ["k=1,l=2.txt", None]
    for words, said in (
        ("d,e.txt", "no data set 'd'.*'d,e.txt' is no path"),
        ("k=2.txt", "no file or folder 2.txt for data set k, and no path 'k=2.txt'"),
    ):
        with pytest.raises(ArmdError, match=said):
            find_corpora(words, SPLITS)


def test_an_unreachable_hub_names_the_local_way(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ArmdError, match="--data lambada=PATH"):
        find_corpora("lambada", SPLITS)


def test_a_mistyped_run_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArmdError, match="no folder runs/boook"):
        load("runs/boook")


# counts published with the data: rows of each split
KNOWN = [
    ("ptb=ptb", "exact", 3761),
    ("ptb=ptb", "mdlm", 3370),
    ("wikitext2=wikitext-2", "sedd", 36718),
    ("wikitext2=wikitext-2", "mdlm", 3760),
    ("wikitext2=wikitext-2-raw/wiki.test.raw", "sedd", 4358),
    ("wikitext103=wikitext-103", "exact", 4358),
    ("lambada=lambada", "exact", 5153),
    ("lambada=lambada/lambada_test_plain_text.txt", "exact", 5153),
    ("lm1b=lm1b-heldout", "exact", 12216 + 12105),
    ("web=webtext-snippets/webtext.test.jsonl", "exact", 4723),
]


@pytest.mark.skipif(not DATA, reason="ARMD_DATA names no folder of benchmark files")
@pytest.mark.parametrize(("word", "protocol", "count"), KNOWN)
def test_real_files_have_the_rows_they_are_known_for(word, protocol, count):
    name, _, place = word.partition("=")
    assert len(rows(f"{name}={Path(DATA or '') / place}", protocol)) == count


@pytest.mark.skipif(not DATA, reason="ARMD_DATA names no folder of benchmark files")
@pytest.mark.parametrize(
    "place",
    [
        "sotu/sotu.txt.xz",
        "wiki-c4-slices/wiki.utf8",
        "wiki-c4-slices/c4.utf8",
        "tiny-shakespeare",
        "tinystories-sample/exllamav3_tiny.txt",
    ],
)
def test_running_text_of_every_form_loads(place):
    found = rows(str(Path(DATA or "") / place))
    assert len(found) > 100 and found[-1] is None
    assert not any(row and row.startswith("<doc ") for row in found)


@pytest.mark.parametrize("name", HUB)
def test_a_benchmark_of_the_hub_is_none_of_the_working_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library would read a folder of that name, and the figures would bear the benchmark's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("armd.data.hub.hub_reachable", lambda: True)
    Path(HUB[name][0]).mkdir(parents=True)
    with pytest.raises(ArmdError, match="in the working folder would be read"):
        rows(name)
