"""Recipes as files: written to a run's config.json, read from JSON or TOML, compared."""

import dataclasses
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..errors import ArmdError
from ..pretrained import MOST_CONFIG
from ..runtime.atomic_files import read_named
from .recipe import Recipe


def as_json(recipe: Recipe) -> str:
    return json.dumps(dataclasses.asdict(recipe), indent=2) + "\n"


def from_dict(values: dict[str, Any], base: Recipe, source: str) -> Recipe:
    """`base` with the fields that `values` names; raises for a field there is none of."""
    return _changed(base, values, source)


def _changed(base: Any, values: dict[str, Any], source: str) -> Any:
    known = get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ArmdError(f"{source} sets '{name}', which is no field{_place_of(name)}")
        now = getattr(base, name)
        if dataclasses.is_dataclass(now):
            if not isinstance(value, dict):
                raise ArmdError(f"{source}: '{name}' must be a table of fields")
            value = _changed(now, value, source)
        elif isinstance(now, tuple):
            if not isinstance(value, list) or any(type(item) is not int for item in value):
                raise ArmdError(f"{source}: '{name}' must be a list of whole numbers")
            value = tuple(value)
        elif type(value) is not type(now) and not (isinstance(now, float) and type(value) is int):
            raise ArmdError(f"{source}: '{name}' must be a {type(now).__name__}, not {value!r}")
        elif (choices := get_args(known[name])) and value not in choices:
            raise ArmdError(f"{source}: '{name}' must be one of {', '.join(choices)}, not {value}")
        changes[name] = value
    return dataclasses.replace(base, **changes)


def _place_of(name: str) -> str:
    """Where a field of this name is, if anywhere."""
    recipe = Recipe()
    if any(f.name == name for f in dataclasses.fields(recipe)):
        return f" there; '{name}' belongs outside of all sections"
    for section in dataclasses.fields(recipe):
        part = getattr(recipe, section.name)
        fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
        if any(f.name == name for f in fields):
            where = f'{{"{section.name}": {{"{name}": ...}}}}'
            return f" there; it belongs into '{section.name}': {where}"
    return "; armd train --help lists them"


def read(path: str | Path) -> dict[str, Any]:
    """The fields that a JSON or TOML file sets."""
    path = Path(path)
    try:
        text = read_named(path, MOST_CONFIG).decode("utf-8")
        toml = path.suffix == ".toml" or (path.is_fifo() and not text.lstrip().startswith("{"))
        values = tomllib.loads(text) if toml else json.loads(text)
    except OSError as error:
        raise ArmdError(f"cannot read the config {path}: {error.strerror}; name a file") from None
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is no JSON error
        raise ArmdError(f"{path} is neither JSON nor TOML: {error}") from None
    if not isinstance(values, dict):
        raise ArmdError(f"{path} must hold a table of fields")
    return values


def differences(a: Recipe, b: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Fields in which two recipes would learn or report differently, with both values. Where the
    data, or the base and the start of an adaptation lie, whose checksums are compared, and which
    machine does the work are no such fields."""
    for part in ("network", "curriculum", "optimizer", "report", "adapt"):
        one, two = getattr(a, part), getattr(b, part)
        for f in dataclasses.fields(one):
            if f.name in ("shuffle", "rho_of") and one.rho == two.rho == 0:
                continue  # nothing is shuffled
            if f.name == "base_model" and one.base and two.base:
                continue
            sums = one.start_sum and two.start_sum if part == "adapt" else ""
            if f.name == ("start" if sums else "start_sum"):  # earlier runs have no checksum
                continue
            if getattr(one, f.name) != getattr(two, f.name):
                yield f.name, getattr(one, f.name), getattr(two, f.name)
    for name in ("model", "seed", "start", "start_step"):
        if getattr(a, name) != getattr(b, name):
            yield name, getattr(a, name), getattr(b, name)


def lengthened(began: Recipe, now: Recipe, saved: list[int]) -> Recipe:
    """The recipe a run began with, as long as it is asked to be now, where what it has learnt so
    far is what the longer run learns: the learning rate must not depend on the length, and the
    strided phase must not have begun, or must be the one that becomes longer. `saved`: the steps
    of its checkpoints."""
    a, b = began.curriculum, now.curriculum
    constant = began.optimizer.schedule == "constant" and not began.adapt.base_model
    same = b.steps == a.steps or (b.steps > a.steps and max(saved, default=0) <= a.steps)
    if not constant or not same or b.sbp_steps < a.sbp_steps:
        return began
    return dataclasses.replace(
        began, curriculum=dataclasses.replace(a, steps=b.steps, sbp_steps=b.sbp_steps)
    )
