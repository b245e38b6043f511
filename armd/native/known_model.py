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
    return all(found.get(name) == weight.shape for name, weight in wanted)
