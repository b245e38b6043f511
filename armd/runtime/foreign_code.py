"""Code that a model's or a tokenizer's folder brings with it is never run, whatever it asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from ..errors import ArmdError

_lock, _seconds = Lock(), list[int]()
"""One entry, transformers' own, for each `with` that is open."""


@contextmanager
def no_foreign_code(name: object) -> Iterator[None]:
    """Inside, transformers runs no code of `name`, and does not ask on the terminal whether it
    may. `trust_remote_code=False` alone does not reach what a config nests in itself."""
    from transformers import dynamic_module_utils as modules

    with _lock:
        _seconds.append(_seconds[0] if _seconds else modules.TIME_OUT_REMOTE_CODE)
        modules.TIME_OUT_REMOTE_CODE = 0  # to wait for an answer
    try:
        yield
    except ValueError as error:
        if "custom code" not in str(error):
            raise
        raise ArmdError(
            f"{name} asks to run code of its own, which is refused; use a model of a kind that "
            "transformers has"
        ) from None
    finally:
        with _lock:
            before = _seconds.pop()
            modules.TIME_OUT_REMOTE_CODE = 0 if _seconds else before
