"""What a user's mistake raises; importable without torch."""

import os
import re
from collections.abc import Collection
from difflib import get_close_matches

from .model.errors import ArmdError as ArmdError
from .model.errors import first_line as first_line


def no_such(kind: str, name: str, known: Collection[str], otherwise: str = "") -> ArmdError:
    """An error for a name that is not among those known: it suggests the nearest, or else says what
    to use."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.3)
    hint = f"did you mean '{near[0]}'?" if near else otherwise or f"use one of {', '.join(known)}"
    return ArmdError(f"no {kind} '{name}'; {hint}")


def os_error_in(error: Exception) -> OSError | None:
    """What the system refused, of an error of a library in Rust, such as tokenizers or safetensors:
    they raise kinds of their own, and tell it in words."""
    told = re.search(r"\(os error (\d{1,4})\)", str(error))
    return OSError(int(told[1]), os.strerror(int(told[1]))) if told else None
