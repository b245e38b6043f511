"""Tiny random models of each family that can be converted, made here: nothing is downloaded."""

from pathlib import Path
from typing import Any

import torch

WORDS = 264
SIZES = {
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SCALING = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "llama, tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama3": {"tie_word_embeddings": False, "rope_parameters": SCALING},
    "mistral": {"tie_word_embeddings": False, "sliding_window": None, "head_dim": 16},
    "qwen2": {"tie_word_embeddings": True},
}


def tokenizer_files(folder: Path, text: str = "the order of the other then there") -> None:
    """Byte-level BPE with a few merges, and an EOS."""
    from armd.data.tokenizer import trained_tokenizer, with_ends

    aside = folder / "tokenizer"
    with_ends(trained_tokenizer(WORDS, [text]), rows=False).save(aside)
    for file in aside.iterdir():
        file.rename(folder / file.name)
    aside.rmdir()


def source_model(name: str, folder: Path, **changes: Any) -> Any:
    """A random model of transformers, saved with a tokenizer."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    kinds = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "mistral": (MistralConfig, MistralForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }
    family = "qwen2" if name == "qwen2" else name.split(",")[0].rstrip("3")
    config, kind = kinds[family]
    model = kind(config(**{**SIZES, **FAMILIES[name], **changes})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            spread = 0.3 if weight.dim() > 1 else 0.1
            weight.copy_(weight.mean() + spread * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(folder)
    tokenizer_files(folder)
    return model
