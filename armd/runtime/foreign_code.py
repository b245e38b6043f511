"""Code that the folder of a model or tokenizer brings with it is never run, whatever it asks for,
and what is read is of that folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from ..errors import ArmdError

_lock, _before = Lock(), list[tuple[int, str | None]]()
"""One entry, transformers' own setting and tiktoken's, for each `with` that is open."""
CACHE = "TIKTOKEN_CACHE_DIR"


@contextmanager
def no_foreign_code(name: object) -> Iterator[None]:
    """Inside, transformers runs no code of `name`, and does not ask on the terminal whether it
    may. `trust_remote_code=False` alone does not reach what a config nests in itself. And tiktoken
    reads the file that is there: it keeps a copy by name in a folder that anybody may write to."""
    from transformers import dynamic_module_utils as modules

    with _lock:
        now = modules.TIME_OUT_REMOTE_CODE, os.environ.get(CACHE)
        _before.append(_before[0] if _before else now)
        modules.TIME_OUT_REMOTE_CODE, os.environ[CACHE] = 0, ""  # to wait for an answer; no cache
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
            seconds, cache = _before.pop()
            if not _before:
                modules.TIME_OUT_REMOTE_CODE = seconds
                os.environ.pop(CACHE) if cache is None else os.environ.update({CACHE: cache})
