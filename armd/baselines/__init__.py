"""The baselines, each a short file of its own: objective, likelihood or bound, sampler. Layers,
data, trainer and evaluation are the ones that our own model has."""

from .registry import MODELS, check_name, config_of, figure_of, knows_orders, model_class, name_of

__all__ = [
    "MODELS",
    "check_name",
    "config_of",
    "figure_of",
    "knows_orders",
    "model_class",
    "name_of",
]
