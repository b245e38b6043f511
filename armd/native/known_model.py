"""Does C know this model? It reads weights by the sizes in the config, from parts of ours."""

import torch
from torch import nn

from ..model.adapted_linear import AdaptedLinear
from ..model.modeling_armd import ArmdLM

MATRICES = ("query", "key_value", "out", "gate_up", "down")
NORMS = ("attention_norm", "mlp_norm")


def is_ours(model: ArmdLM) -> bool:
    """Its parts are, too: others' adapters may have taken their place. No layer stands twice."""
    parts, names = list(model.layers), (*MATRICES, *NORMS)
    inner = [model.norm, *(getattr(part, name) for part in parts for name in names)]
    known = all(isinstance(one, AdaptedLinear | nn.RMSNorm) for one in inner)
    return known and len(set(parts)) == len(parts) and has_sizes(model)


def has_sizes(model: ArmdLM) -> bool:
    """Its weights have the sizes that its config says, by which C reads them."""
    with torch.device("meta"):
        wanted = ArmdLM(model.config).named_parameters()
    named = model.named_parameters(remove_duplicate=False)  # parts may share a weight
    found = {name: weight.shape for name, weight in named}
    linear = [getattr(layer, name) for layer in model.layers for name in MATRICES]
    right = [layer.right_bias for layer in model.layers if layer.right_bias is not None]
    return (
        all(found.get(name) == weight.shape for name, weight in wanted)
        and all(bias.shape == (model.config.n_heads,) for bias in right)
        and all(map(fits, linear))
    )


def fits(linear: AdaptedLinear) -> bool:
    """What it may have besides its matrix, whatever the config says: torch takes a bias of one
    number for all outputs, too."""
    outputs, inputs = linear.weight.shape
    a, b = linear.lora_a, linear.lora_b
    if a is None or b is None:
        adapter_fits = a is b
    else:
        adapter_fits = a.shape == (len(a), inputs) and b.shape == (len(a), outputs)
    return adapter_fits and (linear.bias is None or linear.bias.shape == (outputs,))
