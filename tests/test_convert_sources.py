"""Laws of what a source's folder says twice: the weights that transformers reads are converted, and
what contradicts itself is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from convert_help import SCALING, source_model  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from armd.convert import weight_file  # noqa: E402
from armd.convert.adapter import fingerprint  # noqa: E402
from armd.convert.command import Conversion, convert_command  # noqa: E402
from armd.convert.gguf_source import open_gguf  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.convert.to_gguf import to_gguf  # noqa: E402
from armd.errors import ArmdError  # noqa: E402


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source_model("llama", tmp_path / "source")
    return tmp_path / "source"


def changed(folder: Path, **facts: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("name", ["model_old", "original", "zz"])
def test_copies_beside_the_weights_are_not_read(source: Path, tmp_path: Path, name: str) -> None:
    convert(str(source), tmp_path / "alone")
    wrong = {key: tensor + 1 for key, tensor in weights(source).items()}
    save_file(wrong, source / f"{name}.safetensors")
    convert(str(source), tmp_path / "beside")
    assert same(weights(tmp_path / "beside"), weights(tmp_path / "alone"))
    before = fingerprint(tmp_path / "alone")
    save_file({"x": torch.ones(2)}, tmp_path / "alone" / f"{name}.safetensors")
    assert fingerprint(tmp_path / "alone") == before


def test_shards_of_an_earlier_version_are_not_read(source: Path, tmp_path: Path) -> None:
    """The index says which ones are of this."""
    convert(str(source), tmp_path / "whole")
    tensors = weights(source)
    halves = [dict(list(tensors.items())[part::2]) for part in range(2)]
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for half, file in zip(halves, names, strict=True):
        save_file(half, source / file)
        save_file({k: t + 1 for k, t in half.items()}, source / file.replace("of-00002", "of-3"))
    (source / "model.safetensors").unlink()
    places = {key: file for half, file in zip(halves, names, strict=True) for key in half}
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    convert(str(source), tmp_path / "parts")
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    index.unlink()
    with pytest.raises(ArmdError, match="files of one version"):
        convert(str(source), tmp_path / "none")
    index.write_text(json.dumps({"weight_map": places | {"x": "model-9.safetensors"}}))
    with pytest.raises(ArmdError, match=r"model-9\.safetensors is missing"):
        convert(str(source), tmp_path / "none")


def test_two_ways_of_scaling_that_differ_are_refused(source: Path, tmp_path: Path) -> None:
    both = {"rope_parameters": SCALING, "rope_scaling": {**SCALING, "type": "llama3"}}
    changed(source, **both)
    convert(str(source), tmp_path / "same")
    changed(source, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    with pytest.raises(ArmdError, match="that differ"):
        convert(str(source), tmp_path / "other")


def test_a_head_of_its_own_is_not_dropped(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source_model("llama, tied", source)
    tensors = weights(source)
    for own in (False, True):
        head = tensors["model.embed_tokens.weight"] + own
        save_file({**tensors, "lm_head.weight": head.clone()}, source / "model.safetensors")
        if own:
            with pytest.raises(ArmdError, match="tie_word_embeddings; say false"):
                convert(str(source), tmp_path / "other")
        else:
            convert(str(source), tmp_path / "same")


@pytest.mark.parametrize(
    "facts", [{"rope_parameters": {"rope_type": "yarn"}}, {"attention_bias": True}], ids=str
)
def test_what_cannot_be_represented_is_not_called_damaged(
    source: Path, tmp_path: Path, facts: dict[str, Any]
) -> None:
    changed(source, **facts)
    with pytest.raises(ArmdError, match="cannot represent") as refused:
        convert(str(source), tmp_path / "out")
    assert "damaged" not in str(refused.value)


@pytest.mark.parametrize(("size", "free", "fits"), [(600_000, 3e6, True), (10**9, 1.05e9, False)])
def test_room_beside_the_weights_is_asked_for_by_their_size(
    size: int, free: float, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = type("Free", (), {"free": int(free)})
    monkeypatch.setattr(weight_file.shutil, "disk_usage", lambda _: room)
    if fits:
        return weight_file.check_disk(tmp_path, size)
    with pytest.raises(ArmdError, match="are free there"):
        weight_file.check_disk(tmp_path, size)


def test_a_type_of_gguf_files_is_asked_for_in_gguf_files_alone(tmp_path: Path) -> None:
    for to in ("armd", "llama"):
        with pytest.raises(ArmdError, match="--type is for --to gguf"):
            convert_command(Conversion("none", tmp_path / "out", to=to, type="Q8_0"))  # type: ignore[arg-type]


def test_a_gguf_file_that_is_cut_while_it_is_read_is_one_line(source: Path, tmp_path: Path) -> None:
    """Its weights are read when they are wanted, not mapped: that would end the process."""
    pytest.importorskip("gguf")
    convert(str(source), tmp_path / "ours")
    file = tmp_path / "model.gguf"
    to_gguf(str(tmp_path / "ours"), file, "Q8_0")
    opened, whole = open_gguf(file), file.read_bytes()
    name = next(iter(opened.shapes))
    before = opened.read(name)
    file.write_bytes(b"")
    for one in opened.shapes:
        with pytest.raises(ArmdError, match="was cut"):
            opened.read(one)
    file.write_bytes(whole)
    assert torch.equal(opened.read(name), before)


def test_a_run_is_no_source(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    source.rename(tmp_path / "export")
    run.mkdir()
    (tmp_path / "export").rename(run / "export")
    (run / "config.json").write_text("{}")
    with pytest.raises(ArmdError, match="is a run of ours already; use --to llama"):
        convert(str(run), tmp_path / "out")
