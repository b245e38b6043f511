"""What is wrong with the fields of a request, in sentences."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

NOT_OFFERED = {
    "frequency_penalty": "leave it out, or use repetition_penalty, such as 1.1",
    "presence_penalty": "leave it out, or use repetition_penalty, such as 1.1",
    "logit_bias": "leave it out",
    "tools": "leave it out",
    "functions": "leave it out",
    "response_format": "leave it out, or ask for the type text",
    "audio": "leave it out",
}
"""Fields of OpenAI's that must be left out, or must have the value that changes nothing."""

SEVERAL = {
    "prompt": "must be a text, a list of texts, a list of token ids, or a list of such lists; at "
    "most 64 of them",
    "stop": "must be a text of at most 200 characters, or a list of at most 16 such texts",
    "order": "must be left_to_right, strided, random, a list of the new tokens' numbers from 0 "
    "(completions), or an object of position and block (scores)",
    "blank_length": "must be a number of tokens from 1 on, or a list with one for each blank",
    "content": "must be a text, or a list of parts of the type text",
}
"""Fields that may hold things of several kinds, of which pydantic would list every one."""

KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of a usual size",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object of fields",
    "model_type": "an object of fields",
    "model_attributes_type": "an object of fields",
    "dataclass_type": "an object of fields",
}
BOUNDS = {
    "greater_than_equal": ("ge", "at least {}"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
    "too_long": ("max_length", "a list of at most {} entries"),
    "too_short": ("min_length", "a list of at least {} entries"),
    "string_too_long": ("max_length", "at most {} characters long"),
    "string_too_short": ("min_length", "at least {} characters long"),
    "literal_error": ("expected", "{}"),
}

LONGEST_NAME = 64
"""Letters of a field's name that are compared with those there are: the time grows with them."""


def complaint(error: Mapping[str, Any], known: Sequence[str]) -> tuple[str, str | None]:
    """The sentence for an error that pydantic found, and the field at fault. `known`: the names of
    all fields."""
    kind, context = error["type"], error.get("ctx") or {}
    path = [p for p in error["loc"] if p != "body" and not str(p).startswith("function-after[")]
    if context.get("field_type") == "Value":  # of a text whose letters were looked at first
        kind = f"string_{kind}"
    if kind == "json_invalid":
        return f"the body is no JSON: {context.get('error', 'unreadable')}", None
    if not path and kind == "missing":
        return "the body is missing; send JSON", None
    if not path:
        return "the body must be an object of fields, in UTF-8", None
    name = str(path[0])
    if kind == "extra_forbidden":
        return _unknown(str(path[-1]), known), name
    for part in path:
        if part in NOT_OFFERED:
            return f"{part} is not offered; {NOT_OFFERED[part]}", name
        if part in SEVERAL and kind != "value_error":
            return f"{part} {SEVERAL[part]}", name
    where = name + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path[1:])
    if kind == "missing":
        return f"{where} is missing", name
    if kind in KINDS:
        return f"{where} must be {KINDS[kind]}", name
    if kind in BOUNDS:
        field, words = BOUNDS[kind]
        bound = context.get(field)
        bound = f"{bound:g}" if isinstance(bound, float) else bound
        return f"{where} must be {words.format(bound)}", name
    return f"{where}: {str(error['msg']).removeprefix('Value error, ')}", name


def _unknown(name: str, known: Sequence[str]) -> str:
    if name in NOT_OFFERED:
        return f"{name} is not offered; {NOT_OFFERED[name]}"
    near = difflib.get_close_matches(name[:LONGEST_NAME], known, n=1, cutoff=0.75)
    hint = f"did you mean '{near[0]}'?" if near else "/openapi.json lists those there are"
    return f"there is no field '{name}'; {hint}"
