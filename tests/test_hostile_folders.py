"""Law: a folder that somebody else made, a bad number or a path that cannot be ends in one line and
exit code 2; nothing in it is run, unpickled, followed elsewhere or believed."""

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from training_help import prepare_corpus

from armd import cli
from armd.data.dataset import open_dataset
from armd.errors import ArmdError
from armd.runtime import memory
from armd.runtime.atomic_files import write_sums
from armd.train.recipe_limits import LIMITS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unchecked: None):
    """Give a command line; the one line that it ends with."""

    def give(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["armd", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        text = capsys.readouterr().err
        assert ended.value.code == 2, text
        assert "Traceback" not in text
        lines = [line for line in text.splitlines() if line.startswith("armd: ")]
        assert len(lines) == 1, text
        return lines[0]

    return give


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("trapped"),))


CHANGES: list[dict[str, Any]] = [
    {"vocab_size": 10**9},
    {"vocab_size": "many"},
    {"d_model": 10**6},
    {"n_layers": 10**6},
    {"n_heads": -1},
    {"d_ff": 10**7},
    {"max_length": 1e9},
    {"max_length": None},
    {"dropout": float("nan")},
    {"norm_eps": "small"},
    {"model_type": ["armd"]},
    {"model_type": "armd-baseline", "model": "../../x"},
    {"query": "sideways"},
    {"_attn_implementation": "evil/kernels"},  # transformers would get code from the hub
    {"attn_implementation": "flash_attention_2"},
    {"quantization_config": {"quant_method": "evil"}},
    {"dtype": "complex64"},
    {"torch_dtype": "float99"},
    {"num_labels": 10**9},
    {"base_model_pp_plan": 5},
    {"id2label": {"x": 1}},
]


@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_sizes_in_a_config_are_not_believed(saved: Path, tmp_path: Path, change, said) -> None:
    shutil.copytree(saved, tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    said("generate", tmp_path / "m", "--length", 8)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\udcff"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_damaged_json(saved: Path, tmp_path: Path, name: str, text: str, said) -> None:
    shutil.copytree(saved, tmp_path / "m")
    (tmp_path / "m" / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    said("generate", tmp_path / "m", "--length", 8)


def test_a_model_larger_than_memory_is_not_loaded(
    saved: Path, said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    assert "of memory" in said("generate", saved, "--length", 8)


@pytest.mark.parametrize("named", ["evil.bin", "../evil.bin", "/etc/passwd", "a/b.safetensors"])
def test_an_index_that_names_a_pickle_or_another_folder(
    saved: Path, tmp_path: Path, named: str, said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, tmp_path / "m")
    (tmp_path / "m" / "evil.bin").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "evil.bin").write_bytes(pickle.dumps(Trap()))
    index = {"metadata": {}, "weight_map": {"embedding.weight": named}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "never opened" in said("generate", "m", "--length", 8)
    assert not (tmp_path / "trapped").exists()


def test_weights_and_tokenizers_are_no_links_to_elsewhere(
    saved: Path, tmp_path: Path, said
) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copytree(saved, tmp_path / name)
        link = tmp_path / name / name
        link.unlink()
        link.symlink_to(saved / name)
        assert "link" in said("generate", tmp_path / name, "--length", 8)


def test_a_pipe_is_not_waited_for(saved: Path, tmp_path: Path, said) -> None:
    for name in ("model.safetensors", "tokenizer.json", "sha256.json"):
        shutil.copytree(saved, tmp_path / name)
        write_sums(tmp_path / name)
        (tmp_path / name / name).unlink()
        os.mkfifo(tmp_path / name / name)
        said("generate", tmp_path / name, "--length", 8)
        said("verify", tmp_path / name)


def test_a_link_to_itself_is_one_line(data: Path, tmp_path: Path, said) -> None:
    shutil.copytree(data, tmp_path / "d")
    (link := tmp_path / "d" / "tokenizer" / "tokenizer.json").unlink()
    link.symlink_to(link.name)
    said("verify", tmp_path / "d")


def test_weights_of_whole_numbers_are_no_weights(saved: Path, tmp_path: Path, said) -> None:
    shutil.copytree(saved, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"'))
    said("generate", tmp_path / "m", "--length", 8)


def test_halves_of_letters_in_prompts(saved: Path, tmp_path: Path, said) -> None:
    (file := tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "\\ud800"}\n')
    assert "line 2" in said("generate", saved, "--length", 8, "--prompts", file)


@pytest.mark.parametrize(
    "command",
    ["fair --seconds 0", "fair --repeats 0", "serve --texts -1", "busy --seconds nan"],
)
def test_a_bench_of_nothing(command: str, said) -> None:
    said("bench", *command.split())


def test_a_tokenizer_that_brings_code_is_refused_without_a_question(
    saved: Path, tmp_path: Path, said
) -> None:
    shutil.copytree(saved, tmp_path / "m")
    config = tmp_path / "m" / "tokenizer_config.json"
    code = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}
    config.write_text(json.dumps(json.loads(config.read_text()) | code))
    (tmp_path / "m" / "evil.py").write_text("import pathlib; pathlib.Path('trapped').touch()")
    assert "auto_map" in said("generate", tmp_path / "m", "--length", 8)


GONE: Any = "gone"


def lie(data: Path, out: Path, **changes: Any) -> Path:
    """A copy of the dataset with another manifest, and no checksum of it."""
    shutil.copytree(data, out)
    manifest = json.loads((out / "manifest.json").read_text())
    for place, value in changes.items():
        *path, last = place.split("__")
        table: Any = manifest
        for name in path:
            table = table[int(name) if name.isdecimal() else name]
        table[last] = value
        if value is GONE:
            del table[last]
    (out / "manifest.json").write_text(json.dumps(manifest))
    (out / "sha256.json").unlink()
    return out


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "object"},
        {"dtype": "float64"},
        {"dtype": 5},
        {"dtype": []},
        {"options": []},
        {"splits": []},
        {"splits__train": None},
        {"splits__train__tokens": 10**12},
        {"splits__train__shards": "x"},
        {"splits__train__shards__0__file": "../corpus.jsonl"},
        {"splits__train__shards__0__file": "/etc/passwd"},
        {"splits__train__shards__0__tokens": -5},
        {"tokenizer": {}},
        {"tokenizer__vocab_size": 10**9},
        {"tokenizer__eos": 10**6},
        {"rows": 0},
        *({place: GONE} for place in ("rows", "tokenizer__pad", "tokenizer__name", "tokenizer")),
    ],
    ids=repr,
)
def test_a_manifest_is_not_believed(data: Path, tmp_path: Path, changes) -> None:
    with pytest.raises(ArmdError, match="damaged"):
        open_dataset(lie(data, tmp_path / "d", **changes))


def test_a_shard_is_no_link_and_has_its_checksum_when_it_is_first_read(
    data: Path, tmp_path: Path
) -> None:
    copy = lie(data, tmp_path / "d")
    shard = copy / "train-00000.bin"
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    shard.write_bytes(bytes(content))
    split = open_dataset(copy).split("train")
    with pytest.raises(ArmdError, match="checksum"):
        split.window(16, 0)
    shard.unlink()
    shard.symlink_to(data / "train-00000.bin")
    with pytest.raises(ArmdError, match="symbolic link"):
        open_dataset(copy)


FIELDS = [(f, limits) for fields in LIMITS.values() for f, limits in fields.items()]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("field, limits", FIELDS, ids=[name for name, _ in FIELDS])
def test_every_number_of_a_recipe_has_limits(data: Path, tmp_path: Path, field, limits) -> None:
    from training_help import tiny

    low, high = limits
    for value in (float("nan"), float("inf"), low - 1, 2 * high + 1):
        given = (value,) if field == "streams" else value
        with pytest.raises(ArmdError, match=field.replace("_", "-")):
            tiny(data, tmp_path / "run", **{field: given}).check()


@pytest.mark.parametrize(
    "option, value",
    [
        ("--prompt", "\udcff"),
        ("--device", "quantum"),
        ("--device", "meta"),
        ("--length", "1000000000"),
        ("--batch", "0"),
        ("--count", "-1"),
        ("--count", "1000000000"),
        ("--temperature", "nan"),
        ("--seed", "9" * 30),
        ("--out", "/dev/null/x"),
        ("--json", "/dev/null/x"),
        ("--match-entropy", "nan"),
        ("--blank-lengths", "x"),
    ],
)
def test_bad_options_of_generate(saved: Path, option: str, value: str, said) -> None:
    said("generate", saved, "--length", 8, option, value)


def test_a_width_that_no_screen_has(tmp_path: Path, said) -> None:
    for width in ("9" * 30, "0", "-1"):
        assert "--width" in said("inspect", tmp_path, "--step", 1, "--width", width)


def test_a_run_under_a_file_or_where_nothing_may_be_written(
    data: Path, tmp_path: Path, said
) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run", "/proc/no/run"):
        said("train", "mini", "--data", data, "--out", out)
    assert (tmp_path / "file").read_text() == "mine"


def test_verify_finds_each_damage(data: Path, tmp_path: Path, said, monkeypatch, capsys) -> None:
    copy = lie(data, tmp_path / "d")
    cli.run(["verify", str(copy)])
    shard = copy / "heldout-00000.bin"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    assert "heldout-00000.bin" in said("verify", copy)
    assert "no run" in said("verify", tmp_path)
