"""Law: no link and no entry in a folder of somebody else's makes us read a file outside it."""

import json
import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from training_help import prepare_corpus  # noqa: E402

from armd.convert.gguf_tokenizer import alone  # noqa: E402
from armd.convert.source import open_source  # noqa: E402
from armd.data.chat_template import ChatTemplate  # noqa: E402
from armd.data.dataset import open_dataset  # noqa: E402
from armd.data.formats import Reading  # noqa: E402
from armd.data.sources import find_source  # noqa: E402
from armd.data.tokenizer import from_folder  # noqa: E402
from armd.data.tokenizer_files import NAMES_A_FILE  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.eval.judge import load_judge  # noqa: E402
from armd.pretrained import load_model, load_tokenizer  # noqa: E402
from armd.train.saved_checkpoint import damage  # noqa: E402

Change = Callable[[Path, Path], None]


def entry(name: str, key: str, value: Callable[[Path], object]) -> Change:
    """An entry of a JSON file; the value is made from the folder outside."""

    def change(folder: Path, outside: Path) -> None:
        file = folder / name
        table = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(table | {key: value(outside)}))

    return change


def link(name: str, to: str) -> Change:
    def change(folder: Path, outside: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / to)

    return change


CONFIG, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
TOKENIZERS: dict[str, Change] = {
    "relative": entry(CONFIG, "fast_tokenizer_files", lambda _: ["../outside/tokenizer.0.1.json"]),
    "absolute": entry(CONFIG, "fast_tokenizer_files", lambda o: [str(o / "tokenizer.0.1.json")]),
    "merges": entry(CONFIG, "merges_file", lambda o: str(o / "secret")),
    "source": entry(CONFIG, "source_spm", lambda o: str(o / "secret")),
    "target": entry(CONFIG, "target_spm", lambda o: str(o / "secret")),
    "arguments": entry(CONFIG, "init_inputs", lambda o: [str(o / "secret")]),
    "dictionary": entry(CONFIG, "mecab_kwargs", lambda o: {"mecab_dic": str(o)}),
    "special": entry(SPECIAL, "vocab_file", lambda o: str(o / "secret")),
    "place": entry(SPECIAL, "name_or_path", str),
    "config": entry("config.json", "configuration_files", lambda _: ["../outside/config.4.0.json"]),
    "template": link("additional_chat_templates/default.jinja", "secret"),
    "other": link("tokenizer.0.1.json", "tokenizer.0.1.json"),
    "vocabulary": link("vocab.bpe", "secret"),
    "deep": link("more/deep.txt", "secret"),
}
MODELS: dict[str, Change] = {
    "config": TOKENIZERS["config"],
    "weights": entry("config.json", "transformers_weights", lambda _: "../outside/evil.bin"),
    "pickle": entry("config.json", "transformers_weights", lambda _: "evil.bin"),
    "adapter": entry("adapter_config.json", "base_model_name_or_path", str),
    "settings": link("generation_config.json", "secret"),
}


def hostile(saved: Path, tmp_path: Path, change: Change) -> Path:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    outside.mkdir()
    for name in ("tokenizer.0.1.json", "config.4.0.json", "secret"):
        (outside / name).write_text("{}")
    shutil.copytree(saved, folder)
    change(folder, outside)
    return folder


@pytest.mark.parametrize("way", TOKENIZERS)
def test_of_a_tokenizer(saved: Path, tmp_path: Path, way: str) -> None:
    folder = hostile(saved, tmp_path, TOKENIZERS[way])
    for load in (load_tokenizer, ChatTemplate):
        with pytest.raises(ArmdError, match=r"names other files|leaves"):
            load(folder)


def test_of_each_file_that_a_tokenizer_of_transformers_opens() -> None:
    import transformers

    places = (Path(transformers.__file__).parent / "models").glob("*/tokenization_*.py")
    tables = [re.search(r"VOCAB_FILES_NAMES = \{(.*?)\}", p.read_text(), re.S) for p in places]
    names = {name for t in tables if t for name in re.findall(r'"(\w+)":', t[1])}
    assert {"source_spm", "vocab_file", "merges_file"} <= names
    assert not [n for n in names if not n.endswith(NAMES_A_FILE)]


@pytest.mark.parametrize("way", MODELS)
def test_of_a_model(saved: Path, tmp_path: Path, way: str) -> None:
    folder = hostile(saved, tmp_path, MODELS[way])
    for load in (load_model, load_judge, open_source):
        with pytest.raises(ArmdError, match=r"names other files|leaves|and an adapter"):
            load(str(folder))


def test_of_a_judge_that_is_an_adapter_alone(saved: Path, tmp_path: Path) -> None:
    """transformers would read its base, wherever that is."""
    (folder := tmp_path / "model").mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(saved)}))
    with pytest.raises(ArmdError, match="and an adapter"):
        load_judge(str(folder))


def test_of_what_lies_beside_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "judge.gguf").write_bytes(b"GGUF")
    (tmp_path / "tokenizer.json").write_text("{}")
    with alone(tmp_path / "judge.gguf") as folder:
        assert [file.name for file in Path(folder).iterdir()] == ["judge.gguf"]
        assert Path(folder, "judge.gguf").read_bytes() == b"GGUF"


def test_of_a_run(saved: Path, tmp_path: Path) -> None:
    """Its export and its checkpoints."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "export").symlink_to(saved)
    with pytest.raises(ArmdError, match="leaves"):
        load_model(run)
    place = run / "checkpoints" / "step-00000001"
    place.symlink_to(saved)
    assert "link" in str(damage(place))
    place.unlink()
    place.mkdir()
    (place / "sha256.json").write_text(json.dumps({"../../../secret": "0"}))
    assert "other folders" in str(damage(place))


def test_of_a_dataset(tmp_path: Path) -> None:
    data = prepare_corpus(tmp_path)
    open_dataset(data)
    (data / "sha256.json").unlink()  # who makes the folder makes its checksums, too
    shutil.move(data / "tokenizer", tmp_path / "tokenizer")
    (data / "tokenizer").symlink_to(tmp_path / "tokenizer")
    with pytest.raises(ArmdError, match="leaves"):
        open_dataset(data)


def test_of_a_dataset_its_tokenizer_alone_goes_into_models(tmp_path: Path) -> None:
    """An adapter_config.json or weights beside it would make each export another model."""
    data = prepare_corpus(tmp_path)
    before = open_dataset(data).tokenizer_files()
    for name in ("adapter_config.json", "pytorch_model.bin", "config.json", "evil.py"):
        (data / "tokenizer" / name).write_text("{}")
    assert open_dataset(data).tokenizer_files() == before


OUTSIDE = "configs:\n- data_files: ../outside/secret.jsonl\n"
HUB = {
    "files": ("README.md", f"---\n{OUTSIDE}---\n"),
    "escaped": ("README.md", "---\n" + OUTSIDE.replace("data_files", r'"data_\x66iles"') + "---\n"),
    "folder": ("README.md", "---\nconfigs:\n- data_dir: ../outside\n---\n"),
    "own file": (".huggingface.yaml", OUTSIDE),
    "damaged": ("README.md", "---\nconfigs: [\n---\n"),
}


@pytest.mark.parametrize("way", HUB)
def test_of_a_folder_in_the_form_of_the_hub(tmp_path: Path, way: str) -> None:
    pytest.importorskip("datasets")
    for name in ("corpus", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret.jsonl").write_text(json.dumps({"text": name}))
    read = find_source(f"hf:{tmp_path / 'corpus'}", Reading()).documents
    (tmp_path / "corpus" / "README.md").write_text("---\nlicense: mit\n---\nof data_files\n")
    assert [one.text for one in read()] == ["corpus"]
    name, content = HUB[way]
    (tmp_path / "corpus" / name).write_text(content)
    with pytest.raises(ArmdError, match=r"which is refused|cannot read the metadata"):
        list(read())


def test_of_rows_that_name_media(tmp_path: Path) -> None:
    """Which the library would open to read them, wherever they are."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("datasets")
    rows = {"text": ["a"], "image": [{"bytes": None, "path": str(tmp_path / "outside.png")}]}
    kinds = {"text": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
    facts = {"huggingface": json.dumps({"info": {"features": kinds}})}
    parts = [("bytes", pyarrow.binary()), ("path", pyarrow.string())]
    columns = [("text", pyarrow.string()), ("image", pyarrow.struct(parts))]
    (tmp_path / "corpus").mkdir()
    table = pyarrow.table(rows, schema=pyarrow.schema(columns, metadata=facts))
    parquet.write_table(table, tmp_path / "corpus" / "train.parquet")
    read = find_source(f"hf:{tmp_path / 'corpus'}", Reading()).documents
    assert [one.text for one in read()] == ["a"]


def test_of_archives_whose_members_are_unpickled(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        (tmp_path / "0.txt").write_text("text")
        archive.add(tmp_path / "0.txt", "0.txt")
    (tmp_path / "0.txt").unlink()
    with pytest.raises(ArmdError, match="may unpickle"):
        list(find_source(f"hf:{tmp_path}", Reading(field="txt")).documents())


def test_of_a_column_that_is_kept_as_json(tmp_path: Path) -> None:
    """As `datasets` does where one row of many holds another type: texts are texts still."""
    pytest.importorskip("datasets")
    texts = [f'She said "{number}".\nThen' for number in range(20)]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = find_source(f"hf:{tmp_path}", Reading()).documents
    assert [one.text for one in read()] == texts
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"id": 20, "text": 404}\n')
    documents = read()
    assert [next(documents).text for _ in texts] == texts
    with pytest.raises(ArmdError, match="row 20: field 'text'"):
        next(documents)


@pytest.mark.parametrize("name", ["in.zip", "in.docx", "a::b.jsonl"])
def test_of_archives_and_names_that_are_addresses(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("x::" + str(tmp_path / "secret.jsonl"), "")
    if name.endswith("jsonl"):
        (tmp_path / name).write_text('{"text": "a"}')
    with pytest.raises(ArmdError, match="archive, or named like an address"):
        list(find_source(f"hf:{tmp_path}", Reading()).documents())


@pytest.mark.parametrize(
    "files", [("vocab.txt",), ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")], ids=str
)
def test_of_vocabulary_files_alone(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Without the files of transformers, they are read here."""
    (folder := tmp_path / "words").mkdir()
    for name in files:
        (tmp_path / name).write_text("{}" if name.endswith("json") else "[UNK]\n")
        (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(ArmdError, match="leaves"):
        from_folder(folder)
    (folder / files[0]).unlink()
    os.mkfifo(folder / files[0])
    with pytest.raises(ArmdError, match=r"leaves|no plain file"):
        from_folder(folder)


def test_what_honest_folders_hold_is_taken(saved: Path, tmp_path: Path) -> None:
    """Links inside, the hub's links, and the paths that tokenizers were saved with."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    shutil.copytree(saved, folder)
    blobs.mkdir()
    shutil.move(folder / "tokenizer.json", blobs / "123")
    (folder / "tokenizer.json").symlink_to(Path("../../blobs/123"))
    (folder / "copy.txt").symlink_to("config.json")
    (folder / ".cache").mkdir()
    os.symlink("/", folder / ".cache" / "root")
    for key, value in (
        ("name_or_path", "/home/me"),
        ("tokenizer_file", "/x"),
        ("vocab_file", None),
    ):
        entry(CONFIG, key, lambda _, value=value: value)(folder, tmp_path)
    entry(CONFIG, "sp_model_kwargs", lambda _: {})(folder, tmp_path)
    entry(SPECIAL, "eos_token", lambda _: "<|endoftext|>")(folder, tmp_path)
    assert load_tokenizer(folder).vocab_size and load_model(folder)
