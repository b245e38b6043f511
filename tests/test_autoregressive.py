"""With the shifted query, left to right, this is an ordinary autoregressive transformer."""

import pytest
import torch
from small import KINDS, case_of
from transformers import LlamaConfig, LlamaForCausalLM

import armd
from armd.errors import ArmdError


def llama_channels(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotary turns channels (2j, 2j + 1) together here, (j, j + e / 2) in Llama."""
    pairs = weight.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def as_llama(model: armd.ArmdLM) -> LlamaForCausalLM:
    """The same weights under Llama's names."""
    config = model.config
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
            tie_word_embeddings=True,
        )
    ).eval()
    mine, named = model.state_dict(), {}
    named["model.embed_tokens.weight"] = named["lm_head.weight"] = mine["embedding.weight"]
    named["model.norm.weight"] = mine["norm.weight"]
    for number in range(config.n_layers):
        here, there = f"layers.{number}", f"model.layers.{number}"
        key, value = mine[f"{here}.key_value.weight"].chunk(2)
        gate, up = mine[f"{here}.gate_up.weight"].chunk(2)
        query = mine[f"{here}.query.weight"]
        named |= {
            f"{there}.input_layernorm.weight": mine[f"{here}.attention_norm.weight"],
            f"{there}.post_attention_layernorm.weight": mine[f"{here}.mlp_norm.weight"],
            f"{there}.self_attn.q_proj.weight": llama_channels(query, config.n_heads),
            f"{there}.self_attn.k_proj.weight": llama_channels(key, config.n_heads),
            f"{there}.self_attn.v_proj.weight": value,
            f"{there}.self_attn.o_proj.weight": mine[f"{here}.out.weight"],
            f"{there}.mlp.gate_proj.weight": gate,
            f"{there}.mlp.up_proj.weight": up,
            f"{there}.mlp.down_proj.weight": mine[f"{here}.down.weight"],
        }
    llama.load_state_dict(named)
    return llama


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [1, 2, 17])
def test_shift_equals_llama_with_the_same_weights(seed: int, n: int) -> None:
    case = case_of("left to right", n, seed, query="shift", vocab_size=29, d_model=32, n_heads=4)
    model, tokens = case.model, case.tokens
    bos = model.bos.expand(len(tokens), 1, -1)
    inputs = torch.cat([bos, model.embedding(tokens[:, :-1])], 1)
    with torch.no_grad():
        theirs = as_llama(model)(inputs_embeds=inputs).logits
        ours = model(tokens, order=case.order).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "left to right"])
def test_shift_refuses_every_other_order(kind: str) -> None:
    drawn = (case_of(kind, 9, seed, query="shift") for seed in range(20))
    case = next(
        case for case in drawn if not case.order.is_left_to_right
    )  # one stream is left to right
    with pytest.raises(ArmdError, match="left_to_right"):
        case.model(case.tokens, order=case.order)
