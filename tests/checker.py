"""The type checker that conftest.py puts on armd: an int is a float, as PEP 484 says. The decorator
of jaxtyping binds the arguments of each call anew, which takes longer than most functions do; this
one leaves them to beartype."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
of_jaxtyping = jaxtyping.jaxtyped
sizes_of_a_call = of_jaxtyping("context")  # has no state of its own


def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """What jaxtyping's import hook puts on every function and class, in place of its own."""

    def decorate(found: Any) -> Any:
        if inspect.isfunction(found):
            return checked_function(found)
        return of_jaxtyping(typechecker=typechecker)(found)

    return decorate


def checked_function(function: types.FunctionType) -> Any:
    """Arguments and result are checked, with the same size for the same letter."""
    same = (function.__code__, function.__globals__, function.__name__)
    copy = types.FunctionType(*same, function.__defaults__, function.__closure__)
    copy = functools.wraps(function)(copy)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints_of(function)
    del copy.__wrapped__
    checked = check(copy)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **options)
        with sizes_of_a_call:
            return checked(*args, **options)

    return call


def hints_of(function: types.FunctionType) -> dict[str, Any]:
    """Hints may be written as text; one that only pyright knows the names of says nothing."""
    found = {}
    for name, hint in function.__annotations__.items():
        holder = types.SimpleNamespace(__annotations__={name: hint})
        try:
            known = typing.get_type_hints(holder, function.__globals__, include_extras=True)
            found[name] = known[name]
        except Exception:  # as jaxtyping does
            found[name] = Any
    return found
