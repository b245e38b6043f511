"""What lm-eval's tasks and its --gen_kwargs ask of a generated answer."""

import math
from typing import Any

from ..errors import ArmdError

LONGEST_ANSWER = 256
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
FILTERS = ("top_p", "top_k", "min_p")
NEUTRAL = {"num_beams": 1, "n": 1, "best_of": 1}
"""Options of generation that mean what armd does anyhow."""


def asked(options: dict[str, Any]) -> tuple[list[str], int, dict[str, Any]]:
    """Of a task's options, or those of --gen_kwargs: stop texts, tokens, and how to sample."""
    options = {name: value for name, value in options.items() if value is not None}
    until = options.pop("until", [])
    until = [until] if isinstance(until, str) else until
    if not isinstance(until, list | tuple) or not all(isinstance(stop, str) for stop in until):
        raise ArmdError(f"until {until!r} of gen_kwargs must be a text, or a list of texts")
    until = [stop for stop in until if stop]
    lengths = [options.pop(name) for name in LENGTHS if name in options]
    most = whole_number(LENGTHS[0], lengths[0] if lengths else LONGEST_ANSWER, 1)
    temperature = real_number("temperature", options.pop("temperature", 0.0))
    if not 0 <= temperature < math.inf:
        raise ArmdError(f"temperature {temperature} of gen_kwargs must be at least 0")
    if not options.pop("do_sample", temperature > 0):
        temperature = 0.0
    chosen = {
        name: real_number(name, options.pop(name)) or None for name in FILTERS if name in options
    }
    if chosen.get("top_k") == -1:  # as elsewhere: no such filter
        del chosen["top_k"]
    elif top_k := chosen.get("top_k"):
        chosen["top_k"] = whole_number("top_k", top_k, 1)
    if temperature == 0:  # greedy, whatever filters a task names beside it
        chosen = {}
    if "repetition_penalty" in options:
        penalty = options.pop("repetition_penalty")
        chosen["repetition_penalty"] = real_number("repetition_penalty", penalty)
    if unknown := [name for name, value in options.items() if NEUTRAL.get(name) != value]:
        raise ArmdError(f"'{min(unknown)}' of gen_kwargs is unknown to armd; leave it out")
    return until, most, {"temperature": temperature, **chosen}


def real_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError):
        raise ArmdError(f"{name} {value!r} of gen_kwargs must be a number") from None


def whole_number(name: str, value: float | str, least: int) -> int:
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        number = least - 1
    if not least <= number < 2**63:
        raise ArmdError(f"{name} {value} must be a whole number, at least {least}")
    return number
