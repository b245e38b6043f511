"""A model that is being trained is read as it is: its dropout is off while somebody reads it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

_lock = threading.Lock()
_read: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()
"""Of each model that is being read: how many readers it has, and its modules that were training."""


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside, nothing in the model is training. Several threads may read a model at a time: the
    last of them puts back what the first found."""
    with _lock:
        readers, training = _read.get(model, (0, []))
        if not readers:
            training = [module for module in model.modules() if module.training]
        for module in training:
            module.training = False
        _read[model] = readers + 1, training
    try:
        yield
    finally:
        with _lock:
            readers, training = _read.pop(model)
            if readers > 1:
                _read[model] = readers - 1, training
            else:
                for module in training:
                    module.training = True
