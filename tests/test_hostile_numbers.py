"""Laws: numbers that cannot be, on command lines and in the files of a model, are said in one line;
what is told to the C kernels is what they take it for."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import armd
from armd import cli
from armd.errors import ArmdError
from armd.eval.results import read_results, write_results
from armd.native import library as native
from armd.pretrained import load_model
from armd.runtime.atomic_files import SUMS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and the same with weights of 8 bits in q8."""
    from armd.data.tokenizer import byte_tokenizer

    made = tmp_path_factory.mktemp("numbers") / "model"
    torch.manual_seed(1)
    config = armd.ArmdConfig(
        vocab_size=257, d_model=32, n_layers=1, n_heads=2, max_length=32, query="neighbor"
    )
    byte_tokenizer().save(made)
    armd.ArmdLM(config).eval().save_pretrained(made)
    (made.parent / "text.txt").write_text("A text of some length. " * 40)
    if native.library() is not None:
        cli.run(["quantize", str(made), str(made.parent / "q8"), "--windows", "0"])
    return made


@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
@pytest.mark.parametrize("kind", [torch.float16, torch.float64, torch.uint8])
def test_a_packed_file_of_other_numbers_is_not_given_to_c(
    folder: Path, tmp_path: Path, kind: torch.dtype
) -> None:
    """C takes each for float32, and would read beyond the end of what has fewer bytes."""
    tensors = load_file(folder.parent / "q8" / "model.safetensors")
    for name in (name for name, tensor in tensors.items() if tensor.dtype == torch.float32):
        copy = tmp_path / name
        shutil.copytree(folder.parent / "q8", copy, ignore=shutil.ignore_patterns(SUMS))
        save_file({**tensors, name: tensors[name].to(kind)}, copy / "model.safetensors")
        with pytest.raises(ArmdError, match=f"{name} is of {kind}"):
            load_model(copy)


@pytest.mark.parametrize(
    "name, value",
    [
        *[("hidden_size", 64), ("max_position_embeddings", 2**40), ("num_attention_heads", "x")],
        *[("num_key_value_heads", 1), ("num_hidden_layers", 9), ("right_offset", "x")],
        *[("right_offset", 2**63), ("adapter_rank", "x"), ("dropout", 10**400)],
        *[("init_std", None), ("norm_eps", None), ("rope_base", float("nan"))],
    ],
)
def test_no_number_of_a_config_is_believed(
    folder: Path, tmp_path: Path, name: str, value: object
) -> None:
    """By any of the names that transformers knows it by."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(ArmdError, match=f"config.json is damaged.*{name}"):
        load_model(copy)


def test_a_config_is_checked_under_all_its_names() -> None:
    with pytest.raises(ArmdError, match="n_heads 3 must be divisible by n_kv_heads 2"):
        armd.ArmdConfig(d_model=24, n_heads=3, num_key_value_heads=2)


def test_the_file_that_figures_are_of_is_not_replaced_by_them(folder: Path) -> None:
    text = folder.parent / "text.txt"
    before = text.read_bytes()
    words = [str(folder), "--data", str(text), "--window", "8", "--windows", "2"]
    for verb in ("infill", "streams"):
        for file in (text, folder):
            with pytest.raises(ArmdError, match="give --json another name"):
                cli.run(["eval", verb, *words, "--json", str(file)])
    assert text.read_bytes() == before


@pytest.mark.parametrize("verb", ["ppl", "infill", "streams"])
def test_a_model_without_numbers_has_no_figures(folder: Path, tmp_path: Path, verb: str) -> None:
    copy, out = tmp_path / "copy", tmp_path / "out.json"
    shutil.copytree(folder, copy)
    weights = load_file(copy / "model.safetensors")
    save_file(
        {name: torch.full_like(weight, torch.nan) for name, weight in weights.items()},
        copy / "model.safetensors",
        {"format": "pt"},
    )
    words = ["--data", str(folder.parent / "text.txt"), "--window", "8", "--json", str(out)]
    with pytest.raises(ArmdError, match="log-probabilities are no numbers"):
        cli.run(["eval", verb, str(copy), *words])
    assert not out.exists()


def test_figures_are_json(tmp_path: Path) -> None:
    """Which has no NaN and no infinity: a spread of one text is none."""
    file, given = tmp_path / "out.json", [{"a": [math.inf, 1.0], "b": {"c": -math.inf}}]
    write_results(file, "ppl", [*given, {"d": math.nan}])
    json.loads(file.read_text(), parse_constant=pytest.fail)
    file.write_text(json.dumps({"kind": "ppl", "results": given}))  # as it was written before
    assert read_results(file, "ppl") == [{"a": [None, 1.0], "b": {"c": None}}]


@pytest.mark.parametrize(
    "words, said",
    [
        (["eval", "infill", "MODEL", "--data", "TEXT", "--windows", "0"], "--windows and --batch"),
        (["eval", "infill", "MODEL", "--data", "TEXT", "--batch", "-1"], "--windows and --batch"),
        (["eval", "ppl", "MODEL", "--data", "TEXT", "--batch", str(2**62)], "below 2..31"),
        (["plan", "mini", "--micro-batch", "-1"], "--micro-batch -1 must be"),
        (["plan", "mini", "--vocab-size", str(2**60)], "--vocab-size .* must be"),
        (["plot", "idea", "--out", "picture"], "cannot write picture"),
        (["plot", "MODEL", "--smooth", "0"], "--smooth 0 must be"),
        (["bench", "serve", "--sizes", "huge"], "no size 'huge'"),
        (["bench", "decode", "--batches", "1,x"], "--batches '1,x' must be numbers"),
        (["bench", "products", "--rows", "1", "-1"], "--rows -1 must be above 0"),
        (["bench", "train", "--device", "x"], "x"),
    ],
)
def test_absurd_options_are_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": str(folder), "TEXT": str(folder.parent / "text.txt")}
    with pytest.raises(ArmdError, match=said):
        cli.run([places.get(word, word) for word in words])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [str(2**63), "-" + "9" * 400, "9" * 5000])
def test_no_whole_number_has_more_than_64_bits(number: str) -> None:
    with pytest.raises(OverflowError, match=r"--gpus .* no whole number of 64 bits") as error:
        cli.run(["plan", "mini", "--gpus", number])
    assert "give a smaller number" in cli.one_line(error.value)
