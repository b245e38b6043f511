"""Law: no link and no entry in a folder of somebody else's makes us read a file outside it."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from training_help import prepare_corpus  # noqa: E402

from armd.convert.gguf_tokenizer import alone  # noqa: E402
from armd.convert.source import open_source  # noqa: E402
from armd.data.chat_template import ChatTemplate  # noqa: E402
from armd.data.dataset import open_dataset  # noqa: E402
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
