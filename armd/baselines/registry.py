"""Every model by its name. Nothing here imports torch."""

import importlib
from typing import Any

from ..errors import no_such

# name -> module, class, what it is
MODELS = {
    "armd": ("..model.modeling_armd", "ArmdLM", "our model"),
    "ar": ("..model.modeling_armd", "ArmdLM", "the same layers, one stream, left to right"),
    "transformer-xl": (
        ".transformer_xl",
        "TransformerXl",
        "left to right in segments, with memory",
    ),
    "mdlm": (".mdlm", "Mdlm", "masked diffusion, continuous time"),
    "sedd-absorb": (".sedd", "SeddAbsorb", "score entropy, absorbing noise"),
    "sedd-uniform": (".sedd", "SeddUniform", "score entropy, uniform noise"),
    "radd": (".radd", "Radd", "masked diffusion without time, as an any-order model"),
    "d3pm": (".d3pm", "D3pm", "masked diffusion in discrete time, with the auxiliary loss"),
    "bd3lm-4": (".bd3lm", "Bd3lm", "diffusion inside blocks of 4, left to right between them"),
    "bd3lm-16": (".bd3lm", "Bd3lm", "diffusion inside blocks of 16, left to right between them"),
    "plaid": (".plaid", "Plaid", "diffusion on learnt embeddings, by its likelihood bound"),
    "diffusion-lm": (".diffusion_lm", "DiffusionLm", "diffusion on embeddings, and rounding"),
    "diffusion-bert": (".diffusion_bert", "DiffusionBert", "masked diffusion, rare tokens first"),
    "bert-mouth": (".bert_mouth", "BertMouth", "a masked LM that writes by Gibbs sampling"),
    "sigma-gpt": (
        ".sigma_gpt",
        "SigmaGpt",
        "one stream in any order, with the position to write next as input",
    ),
    "xlnet": (".xlnet", "Xlnet", "two streams all the way up, queries from one learnt row"),
}

# what a model has by its paper, where that is not our default
OWN: dict[str, dict[str, Any]] = {
    "plaid": {"d_embedding": 16},
    "diffusion-lm": {"diffusion_steps": 2000, "d_embedding": 128},
    "diffusion-bert": {"diffusion_steps": 2048},
}


def check_name(name: str) -> str:
    """The name, or an error that suggests the nearest."""
    if name not in MODELS:
        raise no_such("model", name, MODELS)
    return name


def model_class(name: str) -> Any:
    """The class of that model."""
    module, found, _ = MODELS[check_name(name)]
    return getattr(importlib.import_module(module, __package__), found)


def config_of(name: str, **sizes: Any) -> Any:
    """The config of that model; ours and the autoregressive one have none of their own."""
    from ..model.configuration_armd import ArmdConfig
    from .configuration import BaselineConfig

    if check_name(name) in ("armd", "ar"):
        return ArmdConfig(**sizes)
    _, _, block = name.partition("bd3lm-")
    if name == "transformer-xl":  # four segments, as LM1B's windows of 128 in segments of 32
        quarter = max(1, sizes.get("max_length", 1024) // 4)
        sizes = {"segment": quarter, "memory": quarter, **sizes}
    return BaselineConfig(
        model=name, **{"block_size": int(block or 1), **OWN.get(name, {}), **sizes}
    )


def name_of(config: Any) -> str:
    """Which model a config is of."""
    return getattr(config, "model", "ar" if config.query == "shift" else "armd")


def knows_orders(name: str) -> bool:
    """It gives the exact likelihood of a text in an order; the others a bound alone."""
    return name in ("armd", "ar", "sigma-gpt", "xlnet")


def figure_of(name: str) -> str:
    """What its nll is: "exact", a "bound" (an upper one, of -log p), or a "pseudo-likelihood",
    which is neither and can be compared with neither."""
    if knows_orders(name) or name == "transformer-xl":
        return "exact"
    return "pseudo-likelihood" if name == "bert-mouth" else "bound"
