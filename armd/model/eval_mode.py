"""A model that is being trained is read as it is: its dropout is off while it is read."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

_lock = threading.Lock()
_read: WeakKeyDictionary[nn.Module, tuple[set[object], list[nn.Module]]] = WeakKeyDictionary()
"""Of each model that is being read: its readers, and its modules that were training."""


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside, nothing in the model is training. Several threads may read a model at a time: the
    last of them puts back what the first found, also after an interrupt at any point."""
    reader = object()
    try:
        _enter(model, reader)
        yield
    finally:
        try:
            _leave(model, reader)
        except KeyboardInterrupt:  # Ctrl-C while it was put back
            _leave(model, reader)
            raise


def _enter(model: nn.Module, reader: object) -> None:
    with _lock:
        if model not in _read:
            _read[model] = set(), [module for module in model.modules() if module.training]
        readers, training = _read[model]
        readers.add(reader)
        for module in training:
            module.training = False


def _leave(model: nn.Module, reader: object) -> None:
    """May be called twice for a reader, or for one that has not entered."""
    with _lock:
        readers, training = _read.get(model, (set(), []))
        readers.discard(reader)
        if not readers:
            for module in training:
                module.training = True
            _read.pop(model, None)
