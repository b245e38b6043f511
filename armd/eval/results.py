"""Results on disk and on screen: one JSON form for every verb, and the facts to do it again."""

import json
import shlex
import sys
import time
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import ArmdError
from ..runtime.atomic_files import read_text, write_text


def stamp() -> dict[str, Any]:
    """How and when a figure was made."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in ("armd", "torch", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    words = ["armd", *sys.argv[1:]]
    return {
        "command": shlex.join(words),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "versions": versions,
    }


def read_results(file: Path | None, kind: str) -> list[dict[str, Any]]:
    """What a file holds already; it must be of the same kind, and ours. Called before any work, so
    that nothing else is replaced by the results, such as the text that they are of."""
    if file is None or not file.exists() or file.is_char_device() or file.is_fifo():
        return []
    try:
        found = json.loads(read_text(file))
        kept = found["results"]
        if found["kind"] == kind and isinstance(kept, list) and all(map(is_table, kept)):
            return finite(kept)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ArmdError(f"{file} is there and holds no '{kind}' results; give --json another name")


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def beside(earlier: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New results behind those of other commands, models and texts, which stay. The same names may
    be those of another model or text by now, or in another working folder."""
    said = ("command", "model", "data", "source", "weights", "text")
    made = [[one.get(name) for name in said] for one in new]
    return [*(one for one in earlier if [one.get(name) for name in said] not in made), *new]


def write_results(file: Path | None, kind: str, results: list[dict[str, Any]]) -> None:
    """All or nothing: a stop while writing leaves the old file."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    made = {"kind": kind, "results": finite(results)}
    write_text(file, json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def tried_to_write(file: Path | None, kind: str, results: list[dict[str, Any]]) -> str:
    """The same; what went wrong, if it did. A disk that is full now may have room later."""
    try:
        write_results(file, kind, results)
    except OSError as error:
        return (
            f"{file} cannot be written ({error.strerror or error}); the figures printed are whole"
        )
    return ""


def finite(value: Any) -> Any:
    """The same with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as they need to be; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)
