"""Which pretrained models can be represented, and by which config? What cannot is refused by name,
before anything is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ArmdError

if TYPE_CHECKING:
    from ..model.configuration_armd import ArmdConfig

FAMILIES = ("llama", "mistral", "qwen2")
LLAMA3 = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
WRONG_KINDS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What is raised where a table holds values of other kinds than it should."""
COUNTS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"),
)
MOST, MOST_LAYERS = 1 << 24, 1 << 12
RIGHT_OFFSET = 1024
"""How far to the left keys on the right are moved: untrained streams of 1,024 tokens are best so,
with 2,048 a little worse, and where the keys stand far worse."""
RIGHT_BIAS = 0.0
"""Where the bias on such keys starts; where they are not moved, -3.5 is best."""
_WHY_NOT = {
    "mixtral": "a mixture of experts",
    "qwen2_moe": "a mixture of experts",
    "qwen3_moe": "a mixture of experts",
    "deepseek_v3": "a mixture of experts",
    "gpt_oss": "a mixture of experts",
    "gpt2": "learned positions",
    "opt": "learned positions",
    "gpt_neo": "learned positions",
    "bloom": "ALiBi positions",
    "mpt": "ALiBi positions",
    "gemma": "norms with an offset and scaled embeddings",
    "gemma2": "soft-capped logits",
    "gemma3_text": "sliding windows and norms on queries and keys",
    "qwen3": "norms on queries and keys",
    "gpt_neox": "partial rotary positions",
    "phi": "partial rotary positions",
    "mamba": "no attention",
}


def refuse(source: str, what: str) -> None:
    raise ArmdError(
        f"{source} has {what}, which armd cannot represent; give a model of the Llama family "
        f"({', '.join(FAMILIES)}) without it"
    )


def check_family(source: str, kind: str) -> None:
    if kind not in FAMILIES:
        reason = f" ({_WHY_NOT[kind]})" if kind in _WHY_NOT else ""
        raise ArmdError(
            f"{source} is a model of type '{kind}'{reason}; armd converts {', '.join(FAMILIES)}"
        )


def check_counts(source: str, facts: Mapping[str, Any]) -> None:
    """Raise unless the sizes are numbers, and possible ones, before anything is made of them."""
    for name in COUNTS:
        value = facts.get(name)
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST
        if name not in facts or (value is None and name in ("num_key_value_heads", "head_dim")):
            continue
        if type(value) is not int or not 1 <= value <= most:
            raise ArmdError(
                f"the config of {source} is damaged: {name} is no number between 1 and {most}; "
                "copy it again"
            )
    for name in ("rms_norm_eps", "rope_theta"):
        value = facts.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise ArmdError(f"the config of {source} is damaged: {name} is no number above 0")


def check_parts(source: str, facts: Mapping[str, Any]) -> None:
    """Raise for parts of a config of transformers that our network does not have."""
    if not facts.get("is_causal", True) or facts.get("use_bidirectional_attention"):
        refuse(source, "attention to both sides (is_causal: false)")
    if facts.get("num_local_experts") or facts.get("num_experts"):
        refuse(source, "a mixture of experts")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "logit_softcapping"):
        if facts.get(name):
            refuse(source, f"soft-capped logits ({name})")
    if facts.get("quantization_config"):
        refuse(source, "quantized weights (quantization_config)")
    if facts.get("hidden_act", "silu") not in ("silu", "swish"):
        refuse(source, f"the activation {facts['hidden_act']}")
    if facts.get("attention_bias"):
        refuse(source, "a bias on the attention's output (attention_bias)")
    if facts.get("mlp_bias"):
        refuse(source, "biases in the feed-forward (mlp_bias)")
    if facts.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        refuse(source, "partial rotary positions (partial_rotary_factor)")
    check_window(source, facts)


MISTRAL_WINDOW = 4096
"""Of transformers, where a Mistral's config does not name one; null is none."""


def check_window(source: str, facts: Mapping[str, Any]) -> None:
    """A window as long as the longest text hides nothing."""
    mistral = facts["model_type"] == "mistral"
    window = facts.get("sliding_window", MISTRAL_WINDOW if mistral else None)
    used = facts.get("use_sliding_window", mistral)
    kinds = facts.get("layer_types") or []
    hides = window is not None and window < facts["max_position_embeddings"]
    if hides and used and (not kinds or "sliding_attention" in kinds):
        refuse(source, f"sliding windows of {window} tokens")


def rope_of(source: str, facts: Mapping[str, Any]) -> tuple[float, dict[str, float] | None]:
    """Base and Llama-3 scaling, from either of transformers' ways to write them down."""
    ways = [dict(facts.get(name) or {}) for name in ("rope_parameters", "rope_scaling")]
    given = ways[0] or ways[1]
    if all(ways) and same_rope(ways[0]) != same_rope(ways[1]):
        raise ArmdError(
            f"the config of {source} has rope_parameters and a rope_scaling that differ; remove "
            "the one that does not hold"
        )
    base = given.get("rope_theta") or facts.get("rope_theta") or 10000.0
    kind = given.get("rope_type") or given.get("type") or "default"
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        refuse(source, "partial rotary positions (partial_rotary_factor)")
    if kind == "default":
        return float(base), None
    if kind != "llama3":
        refuse(source, f"rotary positions scaled by '{kind}'")
    return float(base), {name: given[name] for name in LLAMA3}


def same_rope(way: Mapping[str, Any]) -> dict[str, Any]:
    """What it says, in whichever words."""
    kind = way.get("rope_type") or way.get("type") or "default"
    names = ("type", "rope_type", "rope_theta")
    return {n: v for n, v in way.items() if n not in names and v is not None} | {"kind": kind}


def config_for(source: str, facts: Mapping[str, Any], max_length: int | None) -> ArmdConfig:
    """Our config for a model that transformers describes by `facts`."""
    from ..model.configuration_armd import ArmdConfig

    check_family(source, str(facts.get("model_type", "unknown"))[:40])
    check_counts(source, facts)
    try:
        check_parts(source, facts)
        base, scaling = rope_of(source, facts)
        heads, longest = facts["num_attention_heads"], facts["max_position_embeddings"]
        fields = {
            "vocab_size": facts["vocab_size"],
            "d_model": facts["hidden_size"],
            "n_layers": facts["num_hidden_layers"],
            "n_heads": heads,
            "n_kv_heads": facts.get("num_key_value_heads") or heads,
            "d_head": facts.get("head_dim") or facts["hidden_size"] // heads,
            "d_ff": facts["intermediate_size"],
            "norm_eps": facts["rms_norm_eps"],
            "tie_word_embeddings": bool(facts.get("tie_word_embeddings", False)),
            "qkv_bias": facts["model_type"] == "qwen2",
        }
    except ArmdError:
        raise
    except KeyError as error:
        raise ArmdError(
            f"the config of {source} does not say {error.args[0]}; copy the folder again"
        ) from None
    except WRONG_KINDS as error:
        raise ArmdError(f"the config of {source} is damaged ({error}); copy it again") from None
    if max_length is not None and not 1 <= max_length <= longest:
        raise ArmdError(f"--max-length {max_length} must be between 1 and the source's {longest}")
    more: dict[str, Any] = {"rope_base": base, "rope_llama3": scaling, "right_bias": True}
    fields["max_length"] = max_length or longest
    fields["right_offset"] = min(RIGHT_OFFSET, fields["max_length"])
    return ArmdConfig(query="neighbor", dropout=0.0, **fields, **more)


def llama3_factors(base: float, d_head: int, scaling: Mapping[str, float]) -> list[float]:
    """By how much Llama-3 scaling slows down each pair of channels; GGUF files hold only this."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    length, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    found = []
    for pair in range(d_head // 2):
        wave = 2 * math.pi * base ** (2 * pair / d_head)
        if wave < length / high:
            found.append(1.0)
        elif wave > length / low:
            found.append(float(factor))
        else:
            smooth = (length / wave - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found
