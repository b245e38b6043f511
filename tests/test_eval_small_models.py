"""A small model is scored though its config names bounds that are greater than it is."""

from pathlib import Path

import pytest
from eval_models import saved
from transformers import Qwen2Config, Qwen2ForCausalLM

from armd.errors import ArmdError
from armd.eval.load_model import check_claims, load

SIZES = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}


def test_a_qwen_of_one_layer(tmp_path: Path) -> None:
    """Its config has max_window_layers 28."""
    place = saved(Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS)), tmp_path / "qwen")
    assert load(place, device="cpu").scorer().vocab_size == 300
    file = Path(place) / "config.json"
    lied = '"num_hidden_layers": 1000000'
    file.write_text(file.read_text().replace('"num_hidden_layers": 1', lied))
    with pytest.raises(ArmdError, match="num_hidden_layers 1000000"):
        check_claims(Path(place))
