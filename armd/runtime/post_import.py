"""Run a function right after a module is imported, whenever that happens (a post-import hook)."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


class _PostImport(MetaPathFinder):
    """Finds one module through the other finders and runs `function` after its code."""

    def __init__(self, module: str, function: Callable[[], None]) -> None:
        self.module, self.function, self.searching = module, function, False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.module or self.searching:
            return None
        self.searching = True  # the search below asks this finder too
        spec = importlib.util.find_spec(fullname)
        self.searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call(module: Any) -> None:
            execute(module)
            self.function()

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def after_import(module: str, function: Callable[[], None]) -> None:
    """Call `function` now if `module` is imported already, else right after its import."""
    if module in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _PostImport(module, function))
