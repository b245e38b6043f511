"""Laws: a model of transformers is scored only if all its weights are from its files, and if what
it says of a token does not depend on the tokens behind it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from convert_help import source_model
from eval_models import VOCABULARY, corpus, saved, tiny_gpt2
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    LlamaForSequenceClassification,
    LlamaModel,
)

from armd.convert.to_armd import convert
from armd.convert.to_gguf import to_gguf
from armd.errors import ArmdError
from armd.eval.causal_check import check_causal
from armd.eval.judge import load_judge
from armd.eval.load_model import load
from armd.eval.perplexity import Scoring, perplexity
from armd.eval.windows import PROTOCOLS

HEAD, INNER = "lm_head.weight", "model.layers.1.mlp.up_proj.weight"
both = pytest.mark.parametrize("opening", [load, load_judge])


def bert(kind: Any = BertForMaskedLM, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return kind(BertConfig(vocab_size=VOCABULARY, intermediate_size=64, **sizes, **more)).eval()


@both
@pytest.mark.parametrize("kind", [LlamaModel, LlamaForSequenceClassification])
def test_a_model_without_a_head_is_refused(tmp_path: Path, opening: Any, kind: Any) -> None:
    model = source_model("llama", tmp_path / "source")
    kind(model.config).save_pretrained(tmp_path / "source")
    with pytest.raises(ArmdError, match=f"lacks 1 of .* {HEAD}; save it as a LlamaForCausalLM"):
        opening(str(tmp_path / "source"))


@both
@pytest.mark.parametrize("name", [HEAD, INNER])
def test_every_weight_must_be_there_and_fit(tmp_path: Path, opening: Any, name: str) -> None:
    source_model("llama", tmp_path / "source")
    file = tmp_path / "source" / "model.safetensors"
    whole = load_file(file)
    for tensors, said in (
        ({key: value for key, value in whole.items() if key != name}, "lacks 1"),
        (whole | {name: whole[name][:-1].clone()}, "has another shape"),
    ):
        save_file(tensors, file, {"format": "pt"})
        with pytest.raises(ArmdError, match=said) as raised:
            opening(str(tmp_path / "source"))
        assert name in str(raised.value) and "\n" not in str(raised.value)


@both
def test_a_head_that_is_the_embedding_is_not_missing(tmp_path: Path, opening: Any) -> None:
    model = source_model("llama, tied", tmp_path / "source")
    assert HEAD not in load_file(tmp_path / "source" / "model.safetensors")
    found, ids = opening(str(tmp_path / "source"), device="cpu").model, torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(found(ids).logits, model(ids).logits)


def test_every_weight_of_a_gguf_file_must_be_there(tmp_path: Path) -> None:
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package)
    source_model("llama", tmp_path / "source")
    convert(str(tmp_path / "source"), tmp_path / "ours")
    to_gguf(str(tmp_path / "ours"), file := tmp_path / "model.gguf", "F16")
    load_judge(str(file))
    file.write_bytes(file.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xy.weight"))
    with pytest.raises(ArmdError, match=f"lacks 1 of .* {INNER}"):
        load_judge(str(file))


@both
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_that_sees_what_it_predicts_is_refused(
    tmp_path: Path, opening: Any, precision: str
) -> None:
    model = bert(initializer_range=0.3)  # as far from uniform as a trained one
    with pytest.raises(ArmdError, match="give a causal language model") as raised:
        opening(saved(model, tmp_path / "bert"), precision=precision)
    assert "\n" not in str(raised.value)
    decoder = bert(BertLMHeadModel, is_decoder=True, initializer_range=0.3)
    opening(saved(decoder, tmp_path / "decoder"), precision=precision)


def test_a_trace_of_the_next_tokens_is_seen() -> None:
    check_causal("decoder", bert(BertLMHeadModel, is_decoder=True))
    with pytest.raises(ArmdError, match="sees the tokens"):
        check_causal("bert", bert())  # untrained: the others move its logits by a hundredth


@pytest.mark.parametrize("places", [1, 2, 3, 5])
def test_a_model_of_few_positions_is_scored(tmp_path: Path, places: int) -> None:
    model = tiny_gpt2(n_positions=places)
    found = load(saved(model, tmp_path / "model"), device="cpu")
    exact = PROTOCOLS["exact"]
    figures = perplexity(found, corpus(["a text"]), exact, Scoring(), window=places)
    assert figures["tokens_scored"] == 7
