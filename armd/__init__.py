"""armd: Auto-Regressive Masked Diffusion language models.

Names are imported when first used, so that the command line answers without loading torch.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import order as order
    from .generation.api import generate as generate
    from .generation.api import infill as infill
    from .generation.api import stream as stream
    from .model.configuration_armd import ArmdConfig as ArmdConfig
    from .model.errors import ArmdError as ArmdError
    from .model.likelihood import any_order as any_order
    from .model.likelihood import log_likelihood as log_likelihood
    from .model.likelihood import loss as loss
    from .model.modeling_armd import ArmdLM as ArmdLM
    from .model.order import Order as Order

_WHERE = {
    "ArmdConfig": "model.configuration_armd",
    "ArmdError": "model.errors",
    "ArmdLM": "model.modeling_armd",
    "Order": "model.order",
    "any_order": "model.likelihood",
    "generate": "generation.api",
    "infill": "generation.api",
    "log_likelihood": "model.likelihood",
    "loss": "model.likelihood",
    "stream": "generation.api",
}
__all__ = [*_WHERE, "order"]


def __getattr__(name: str) -> Any:
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


def _register_model() -> None:
    from transformers import AutoModelForMaskedLM

    from .model.configuration_armd import ArmdConfig
    from .model.modeling_armd import ArmdLM

    AutoModelForMaskedLM.register(ArmdConfig, ArmdLM, exist_ok=True)


_REGISTER = {
    "transformers.models.auto.configuration_auto": _register_config,
    "transformers.models.auto.modeling_auto": _register_model,
}


class _RegisterOnImport(MetaPathFinder):
    """Registers our classes at the moment transformers' auto classes are imported, not before:
    `import armd` then stays light, and whoever uses the auto classes finds ours there."""

    busy = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in _REGISTER or self.busy:
            return None
        self.busy = True  # the look-up below comes through here again
        spec = find_spec(fullname)
        self.busy = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_then_register(module: Any) -> None:
            run(module)
            _REGISTER[fullname]()

        spec.loader.exec_module = run_then_register  # type: ignore[method-assign]
        return spec


for _module, _function in _REGISTER.items():
    if _module in sys.modules:
        _function()
sys.meta_path.insert(0, _RegisterOnImport())
