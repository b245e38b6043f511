"""armd: Auto-Regressive Masked Diffusion language models.

Names are imported when first used, so that the command line answers without loading torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .runtime.post_import import after_import

if TYPE_CHECKING:
    from . import order as order
    from .generation.api import generate as generate
    from .generation.api import stream as stream
    from .infilling import infill as infill
    from .model.configuration_armd import ArmdConfig as ArmdConfig
    from .model.errors import ArmdError as ArmdError
    from .model.likelihood import any_order as any_order
    from .model.likelihood import log_likelihood as log_likelihood
    from .model.likelihood import loss as loss
    from .model.modeling_armd import ArmdLM as ArmdLM
    from .model.order import Order as Order
    from .text_model import load as load

_WHERE = {
    "ArmdConfig": "model.configuration_armd",
    "ArmdError": "model.errors",
    "ArmdLM": "model.modeling_armd",
    "Order": "model.order",
    "any_order": "model.likelihood",
    "generate": "generation.api",
    "infill": "infilling",
    "load": "text_model",
    "log_likelihood": "model.likelihood",
    "loss": "model.likelihood",
    "stream": "generation.api",
}
__all__ = [*_WHERE, "order"]
CAUSAL, BASELINE = f"{__name__}.model.causal_armd", f"{__name__}.baselines.configuration"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("armd")
    if name == "order":
        return importlib.import_module(".order", __name__)
    if name not in _WHERE:
        raise AttributeError(f"module 'armd' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _register_config() -> None:
    from transformers import AutoConfig

    from .model.configuration_armd import ArmdConfig

    AutoConfig.register("armd", ArmdConfig, exist_ok=True)
    importlib.import_module(BASELINE)


def _register_baseline() -> None:
    from transformers import AutoConfig

    from .baselines.configuration import BaselineConfig

    AutoConfig.register("armd-baseline", BaselineConfig, exist_ok=True)


def _register_model() -> None:
    from transformers import AutoModelForMaskedLM

    from .model.configuration_armd import ArmdConfig
    from .model.modeling_armd import ArmdLM

    AutoModelForMaskedLM.register(ArmdConfig, ArmdLM, exist_ok=True)
    importlib.import_module(CAUSAL)


def _register_causal() -> None:
    from transformers import AutoModelForCausalLM

    from .model.causal_armd import ArmdForCausalLM
    from .model.configuration_armd import ArmdConfig

    AutoModelForCausalLM.register(ArmdConfig, ArmdForCausalLM, exist_ok=True)


# transformers takes seconds to import, so its auto classes learn of ours only once it is imported
after_import("transformers.models.auto.configuration_auto", _register_config)
after_import("transformers.models.auto.modeling_auto", _register_model)
# these may be what imports transformers, and then they are not whole yet when it is
after_import(CAUSAL, _register_causal)
after_import(BASELINE, _register_baseline)
