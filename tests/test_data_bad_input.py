"""Law: a user's mistake is one line that names the fix, exit code 2, and nothing written."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from data_help import stored_shards

from armd import cli
from armd.data import shards
from armd.data.dataset import open_dataset
from armd.data.hub import require_hub
from armd.data.prepare import Preparation, prepare
from armd.data.tokenizer import find_tokenizer
from armd.errors import ArmdError

GOOD = "one line\nand another\n" * 50


def write(name: str, data: str | bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        path = folder / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    return make


CASES: list[tuple[str, Callable[[Path], str], dict, str]] = [
    ("empty file", write("e.txt", ""), {}, r"e\.txt is empty"),
    ("only blanks", write("b.txt", "\n\n\n"), {"documents": "line"}, "holds no text"),
    ("binary", write("b.txt", b"\x7fELF\x00\x01"), {}, "zero byte at offset 4"),
    ("binary later", write("b.txt", b"ok\nno\x00"), {"documents": "line"}, "at offset 5"),
    ("invalid UTF-8", write("u.txt", b"caf\xe9 noir"), {}, r"u\.txt is no valid UTF-8 at byte 3"),
    (
        "invalid line",
        write("u.txt", b"ok\nok\n\xff"),
        {"documents": "line"},
        "at byte 6; --replace",
    ),
    ("invalid jsonl", write("u.jsonl", b'{"text": "\xff"}\n'), {}, "at byte 10"),
    ("one document", write("o.txt", GOOD), {}, "single document.*--documents line"),
    ("equal lines", write("o.txt", "a\na\n"), {"documents": "line"}, "single document"),
    ("no JSON", write("j.jsonl", '{"text": "a"}\n{oops\n'), {}, r"j\.jsonl line 2 is no JSON"),
    ("long number", write("j.jsonl", '{"text": ' + "9" * 5000 + "}\n"), {}, "line 1 is no JSON"),
    ("other field", write("j.jsonl", '{"body": "a"}\n'), {}, r"no field 'text' \(--field\).*body"),
    ("no string", write("j.jsonl", '{"text": 3}\n'), {}, "is int, not text"),
    ("surrogate", write("j.jsonl", '{"text": "\\ud800"}\n'), {}, "surrogate.*--replace-invalid"),
    ("cut gzip", write("g.txt.gz", gzip.compress(GOOD.encode())[:40]), {}, "damaged or cut short"),
    ("no gzip", write("g.txt.gz", GOOD), {}, "damaged or cut short"),
    ("misspelt source", lambda _: "sotuu", {}, "did you mean 'sotu'"),
    (
        "misspelt file",
        lambda f: write("shakespeare.txt", GOOD)(f)[:-5] + "s.txt",
        {},
        "did you mean",
    ),
    ("empty folder", lambda f: str(f), {}, "no .txt, .jsonl, .parquet file"),
    ("bad bpe", write("o.txt", GOOD), {"tokenizer": "bpe:12"}, "at least 258"),
    ("bad bpe word", write("o.txt", GOOD), {"tokenizer": "bpe:big"}, "at least 258"),
    ("folder is no tokenizer", write("o.txt", GOOD), {"tokenizer": "."}, "no tokenizer in"),
    ("lines", write("o.txt", GOOD), {"documents": "lines"}, "did you mean line"),
    ("paragraphs", write("o.txt", GOOD), {"documents": "Paragraphs"}, "did you mean blank"),
    ("escaped", write("o.txt", GOOD), {"documents": r"\n\n"}, "a backslash and a letter"),
    ("bad share", write("o.txt", GOOD), {"heldout": 1.5}, "--heldout 1.5"),
    ("short rows", write("o.txt", GOOD), {"rows": 1}, "--rows 1"),
]


@pytest.mark.parametrize(
    ("make", "options", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_one_line_and_nothing_written(tmp_path: Path, make, options: dict, message: str):
    folder = tmp_path / "in"
    folder.mkdir()
    source = make(folder)
    documents = {"documents": "line"} if "tokenizer" in options else {}
    options = {"tokenizer": "byte", "workers": 1, **documents, **options}
    if options["tokenizer"] == ".":
        options["tokenizer"] = str(folder)
    with pytest.raises(ArmdError, match=message) as raised:
        prepare(Preparation(source=source, out=tmp_path / "new" / "too" / "out", **options))
    assert "\n" not in str(raised.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_shards_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A shard is a file: with few tokens in each, a text would become millions of them."""
    monkeypatch.setattr(shards, "MOST_SHARDS", 3)
    case = (write("o.txt", GOOD), {"documents": "line", "shard_tokens": 1}, "raise --shard-tokens")
    test_one_line_and_nothing_written(tmp_path, *case)


def test_unknown_tokenizer_suggests_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = write("o.txt", GOOD)(tmp_path)
    with pytest.raises(ArmdError, match="did you mean 'gpt2'"):
        prepare(Preparation(source, "gtp2", tmp_path / "out", documents="blank", heldout=0))
    with pytest.raises(ArmdError, match="hub is not reachable"):
        list(prepare_hub())


def prepare_hub():
    from armd.data.formats import Reading
    from armd.data.sources import find_source

    pytest.importorskip("datasets")
    return find_source("hf:no/such", Reading()).documents()


def test_replace_invalid_replaces(tmp_path: Path):
    path = tmp_path / "u.jsonl"
    path.write_bytes(b'{"text": "a\xff"}\n{"text": "b\\ud800"}\n')
    dataset = prepare(
        Preparation(str(path), "byte", tmp_path / "o", replace_invalid=True, workers=1)
    )
    tokens = [stored_shards(dataset.split(name))[0][:-1] for name in ("train", "heldout")]
    assert {bytes(t.tolist()).decode() for t in tokens} == {"a\ufffd", "b\ufffd"}


@pytest.mark.parametrize("address", ["http://localhost:abc", "http://localhost:99999", "http://["])
def test_an_address_of_the_hub_that_is_none(address: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(ArmdError, match="give the address of a hub"):
        require_hub("hf:x", "give a file")


def test_a_folder_that_is_no_dataset_is_left_alone(tmp_path: Path):
    source = write("o.txt", GOOD)(tmp_path)
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ArmdError, match="exists and is no dataset"):
        prepare(Preparation(source, "byte", out, documents="line"))
    assert [entry.name for entry in out.iterdir()] == ["thesis.tex"]


def test_command_line_prints_one_line_and_exits_2(tmp_path: Path):
    words = ["prepare", "nowhere.txt", "--tokenizer", "byte", "--out", str(tmp_path / "o")]
    done = subprocess.run(
        [sys.executable, "-m", "armd.cli", *words], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("armd: no source")


def test_damage_is_noticed(tmp_path: Path):
    source = write("o.txt", GOOD.replace("another", "one more") + "last")(tmp_path)
    out = tmp_path / "o"
    dataset = prepare(Preparation(source, "byte", out, documents="line", workers=1))
    shard = out / "train-00000.bin"
    good = shard.read_bytes()
    shard.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    open_dataset(out)
    with pytest.raises(ArmdError, match="damaged"):
        open_dataset(out, verify=True)
    shard.write_bytes(good[:-2])
    with pytest.raises(ArmdError, match="bytes, not"):
        open_dataset(out)
    shard.unlink()
    with pytest.raises(ArmdError, match="is missing"):
        open_dataset(out)
    shard.write_bytes(good)
    manifest = out / "manifest.json"
    manifest.write_text(json.dumps(dataset.manifest | {"format": 99}))
    with pytest.raises(ArmdError, match="format 99"):
        open_dataset(out)
    manifest.write_text("{")
    with pytest.raises(ArmdError, match="cannot read"):
        open_dataset(out)
    with pytest.raises(ArmdError, match="no dataset in"):
        open_dataset(tmp_path)


def test_a_tokenizer_gives_the_same_tokens_at_each_call(tmp_path: Path):
    """BPE dropout is for training a model on many cuts of one text; here it is off."""
    found = find_tokenizer("bpe:300", [GOOD * 9], rows=False)
    found.save(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    saved = json.loads(file.read_text())
    saved["model"]["dropout"] = 0.9
    file.write_text(json.dumps(saved))
    again = find_tokenizer(str(tmp_path / "tokenizer"), (), rows=False)
    same = found.backend.encode(GOOD).ids
    assert all(again.backend.encode(GOOD).ids == same for _ in range(9))


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", {}), *(("tokenizer_config.json", {"eos_token": one}) for one in (5, []))],
)
def test_a_damaged_tokenizer_of_a_dataset_is_refused(tmp_path: Path, name: str, content: dict):
    source = write("o.txt", GOOD)(tmp_path)
    prepare(Preparation(source, "byte", tmp_path / "o", documents="line", workers=1))
    (tmp_path / "o" / "sha256.json").unlink()
    (tmp_path / "o" / "tokenizer" / name).write_text(json.dumps(content))
    with pytest.raises(ArmdError, match=r"tokenizer in .* is damaged .* prepare it again"):
        open_dataset(tmp_path / "o").tokenizer()


def test_another_tokenizer_is_refused(tmp_path: Path):
    source = write("o.txt", GOOD)(tmp_path)
    dataset = prepare(Preparation(source, "byte", tmp_path / "o", documents="line", workers=1))
    dataset.check_tokenizer(find_tokenizer("byte", [], rows=False).backend)
    with pytest.raises(ArmdError, match="not the one of"):
        dataset.check_tokenizer(find_tokenizer("bpe:300", [GOOD], rows=False).backend)
    with pytest.raises(ArmdError, match="no split 'test'"):
        dataset.split("test")


def test_no_verb_ends_in_a_traceback_for_an_address_that_is_none(
    monkeypatch: pytest.MonkeyPatch,
):
    """The hub's library could not be imported with it."""
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:99999")
    with pytest.raises(ArmdError, match="give the address of a hub"):
        cli.answer(["generate", "nothing"])
