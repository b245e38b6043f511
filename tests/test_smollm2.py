"""Laws on the real model, where it is installed and converted: left to right it is its source."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

from armd.convert.adapter import LINEARS, Merging, right_offset_of  # noqa: E402
from armd.convert.family import RIGHT_OFFSET  # noqa: E402
from armd.convert.smollm2 import (  # noqa: E402
    GET,
    available,
    converted_folder,
    package_file,
    ready_folder,
    shipped_adapter,
)
from armd.convert.to_llama import to_llama  # noqa: E402
from armd.pretrained import load_model, load_tokenizer  # noqa: E402
from armd.runtime.atomic_files import SUMS, damaged_files, write_sums  # noqa: E402

pytestmark = pytest.mark.skipif(not available(), reason=f"needs the real model: {GET}")
TEXT = (
    "The Amazon is a river in South America. It carries more water than any other river, and "
    "most of the forest around it has never been cut. In 1541 Francisco de Orellana"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    """The user's converted model. Converting it here would cost more than all that is tested."""
    if not (converted_folder() / "config.json").is_file():
        pytest.skip("armd generate smollm2 converts the model, once; it is not there yet")
    return converted_folder()


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, list[int]]:
    """Our model, the same as one of transformers, and a text."""
    from transformers import AutoModelForCausalLM

    back = tmp_path_factory.mktemp("llama") / "back"
    to_llama(str(folder), back)
    theirs = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).eval()
    ids = load_tokenizer(folder).backend.encode(TEXT, add_special_tokens=False).ids
    return load_model(folder), theirs, ids


def test_the_shipped_adapter_is_whole_and_reads_the_right_side() -> None:
    """As far as it can be seen without its base."""
    assert damaged_files(shipped_adapter()) == []
    assert right_offset_of(shipped_adapter()) == RIGHT_OFFSET
    merging = Merging(shipped_adapter())
    assert merging.rank and all(bool(t.isfinite().all()) for t in merging.added.values())
    assert {
        f"layers.{n}.{part}.lora_b" for n in range(30) for part in LINEARS
    } < merging.added.keys()
    assert {f"layers.{n}.right_bias" for n in range(30)} <= merging.new.keys()


def test_digits_are_cut_one_by_one(folder: Path) -> None:
    """As in the source's own tokenizer: ends of lines before a digit are a word of their own."""
    backend = load_tokenizer(folder).backend
    found = backend.encode("Hello world! 123", add_special_tokens=False).ids
    assert found == [19556, 905, 17, 216, 33, 34, 35]
    words = backend.encode("List:\n\n1. one", add_special_tokens=False).tokens
    assert words[:4] == ["List", ":", "ĊĊ", "1"]


@pytest.mark.parametrize("left", ["model.safetensors", "config.json"])
def test_what_was_cleared_in_part_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    place = tmp_path / "cache" / "smollm2"
    files = {"config.json", "model.safetensors"}

    def convert(source: str, out: Path, **_: Any) -> None:
        out.mkdir()  # which fails where one is
        for name in files:
            (out / name).write_text("{}")
        write_sums(out)

    monkeypatch.setattr("armd.convert.smollm2.converted_folder", lambda: place)
    monkeypatch.setattr("armd.convert.to_armd.convert", convert)
    place.parent.mkdir()
    convert("", place)
    for name in files - {left}:
        (place / name).unlink()
    for _ in range(2):
        assert ready_folder() == place
        assert {path.name for path in place.iterdir()} == {*files, SUMS}
    assert list((tmp_path / "cache").iterdir()) == [place]


def next_logits(theirs: Any, bos: int, ids: list[int]) -> Any:
    """What transformers' model says of each token, and of the one after the last."""
    with torch.no_grad():
        return theirs(torch.tensor([[bos, *ids]])).logits[0]


def what_it_was(theirs: Any, bos: int, ids: list[int]) -> str:
    """The weights or the pass: once, the Llama's logits were all 0 (docs/log.md)."""
    weights = {name: float(value.abs().sum()) for name, value in theirs.state_dict().items()}
    zero = [name for name, total in weights.items() if not total > 0]
    again = next_logits(theirs, bos, ids)
    return f"weights of the Llama that are 0: {zero}; called again, its logits begin {again[:, :3]}"


def test_left_to_right_and_greedy_it_is_the_llama_it_becomes(pair: Any, folder: Path) -> None:
    import armd

    ours, theirs, ids = pair
    bos = load_tokenizer(folder).bos
    with torch.no_grad():
        found = ours(torch.tensor([ids])).logits[0]
    expected = next_logits(theirs, bos, ids)[:-1]
    assert torch.allclose(found, expected, atol=1e-3, rtol=0), what_it_was(theirs, bos, ids)
    written = armd.generate(ours, length=len(ids) + 64, prompt=[ids], temperature=0.0)[0].tolist()
    # greedy drawing of the other gives the same 64 tokens if each is the best after those before
    best = next_logits(theirs, bos, written).argmax(-1).tolist()
    assert written[len(ids) :] == best[len(ids) : -1]


def test_it_is_the_file_of_the_package_and_the_shipped_adapter(folder: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file

    from armd.convert.gguf_source import open_gguf

    assert sum(file.stat().st_size for file in shipped_adapter().iterdir()) <= 8_000_000
    low = load_file(shipped_adapter() / "adapter_model.safetensors")
    up = low["base_model.model.layers.7.down.lora_B.weight"].float()
    source = open_gguf(package_file())
    same = {"embedding": "embed_tokens", "layers.7.down": "layers.7.mlp.down_proj"}
    with safe_open(folder / "model.safetensors", "pt") as ours:
        for name, theirs in same.items():
            own = ours.get_tensor(f"{name}.weight")
            assert torch.equal(own, source.read(f"model.{theirs}.weight"))
        assert torch.equal(ours.get_tensor("layers.7.down.lora_b"), 2 * up.mT)
