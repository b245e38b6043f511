"""A copy of a model that shares its weights."""

import copy

from ..model.modeling_armd import ArmdLM

OURS = ("_parameters", "_buffers", "_modules", "config")
"""Attributes of a module that a copy must have for itself."""


def sharing_weights(model: ArmdLM) -> ArmdLM:
    """A copy that shares every parameter, and what a user put into the model that has no copies,
    such as a lock or activations."""
    weights = {id(p): p for p in model.parameters()}
    try:
        return copy.deepcopy(model, dict(weights))
    except Exception:  # each type has errors of its own
        parts = [vars(module) for module in model.modules()]
        theirs = {id(v): v for part in parts for name, v in part.items() if name not in OURS}
        return copy.deepcopy(model, weights | theirs)
