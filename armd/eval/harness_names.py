"""Names of metrics and data sets that lm_eval's tasks look up. A folder of that name in the working
folder would come first: its figures would bear the other's name, and its code would be run."""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.hub import TEXTS
from ..errors import ArmdError


def refuse_local_names() -> None:
    """Let a name be none of the working folder's, in this process; a path is one: ./NAME."""
    import datasets

    datasets.load_dataset = by_name(datasets.load_dataset)
    if importlib.util.find_spec("evaluate") is not None:
        import evaluate  # type: ignore[import-not-found]

        evaluate.load = by_name(evaluate.load)


def by_name(load: Callable[..., Any]) -> Callable[..., Any]:
    """The same, of a function whose first argument is a name or a path."""

    @functools.wraps(load)
    def found(path: Any, *args: Any, **options: Any) -> Any:
        name = str(path)
        if name not in TEXTS and not name.startswith((".", "/")) and Path(name).exists():
            raise ArmdError(
                f"'{name}' of the working folder would be taken for what lm_eval knows by that "
                f"name; write ./{name} in the task if it is meant, or work elsewhere"
            )
        return load(path, *args, **options)

    return found
