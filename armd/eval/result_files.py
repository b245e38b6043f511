"""What was measured: the result files below some folders, sorted by kind."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArmdError

KINDS = ("ppl", "samples", "infill")


@dataclass
class Findings:
    """Results of each kind, with the file they came from as `file`."""

    ppl: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    infill: list[dict[str, Any]] = field(default_factory=list)
    bench: list[dict[str, Any]] = field(default_factory=list)
    training: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Run folder -> rows of its metrics.jsonl."""


def collect(places: list[Path]) -> Findings:
    found = Findings()
    for place in places:
        if not place.exists():
            raise ArmdError(f"no file or folder {place}; give results written with --json, or runs")
        files = [place] if place.is_file() else sorted(place.rglob("*.json"))
        for file in files:
            sort_in(found, file)
        if place.is_dir():
            for log in sorted(place.rglob("metrics.jsonl")):
                if rows := read_rows(log):
                    found.training[str(log.parent)] = rows
    return found


def sort_in(found: Findings, file: Path) -> None:
    """Put a file's results where they belong; other JSON files are left alone."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except (ValueError, OSError):
        return
    if not isinstance(content, dict):
        return
    if content.get("kind") in KINDS:
        results = [{**result, "file": str(file)} for result in content.get("results", [])]
        getattr(found, content["kind"]).extend(results)
    elif is_bench(rows := content.get("rows", [])):
        settings = content.get("settings", {})
        found.bench += [{**row, "settings": settings, "file": str(file)} for row in rows]


def is_bench(rows: Any) -> bool:
    """Rows of `armd bench train`, by what only they have."""
    return isinstance(rows, list) and all(isinstance(r, dict) and "ratio_to_ar" in r for r in rows)


def read_rows(log: Path) -> list[dict[str, Any]]:
    rows = []
    for line in log.read_text("utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the line a stopped run was writing
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
    return rows
