"""The type checker that conftest.py puts on armd: an int is a float, as PEP 484 says. To know the
sizes of a call, jaxtyping binds its arguments anew, which takes longer than most functions do;
those without shapes are checked without it."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
with_shapes = jaxtyping.jaxtyped


def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """What jaxtyping's import hook puts on every function and class, in place of its own."""

    def decorate(found: Any) -> Any:
        if not inspect.isfunction(found):
            return with_shapes(typechecker=typechecker)(found)
        hints = {name: resolved(hint, found) for name, hint in found.__annotations__.items()}
        if any(map(has_shape, hints.values())):
            return with_shapes(typechecker=typechecker)(found)
        return without_shapes(found, hints)

    return decorate


def without_shapes(function: types.FunctionType, hints: dict[str, Any]) -> Any:
    same = (function.__code__, function.__globals__, function.__name__)
    copy = types.FunctionType(*same, function.__defaults__, function.__closure__)
    copy = functools.wraps(function)(copy)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    del copy.__wrapped__
    checked = check(copy)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return (function if jaxtyping.config.jaxtyping_disable else checked)(*args, **options)

    return call


def resolved(hint: Any, function: types.FunctionType) -> Any:
    """A hint that may be written as text; one that only pyright knows the names of says nothing."""
    try:
        holder = types.SimpleNamespace(__annotations__={"hint": hint})
        return typing.get_type_hints(holder, function.__globals__, include_extras=True)["hint"]
    except Exception:  # as jaxtyping does
        return Any


def has_shape(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(has_shape(part) for part in typing.get_args(hint))
