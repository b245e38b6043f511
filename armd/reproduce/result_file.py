"""A stage's results: one JSON file, in which each entry is measured once for given weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ArmdError
from ..runtime.atomic_files import replace_text

STAGES = ("perplexity", "generation", "price", "latency", "ablations")


class Findings:
    """results/reproduce-STAGE.json. An entry whose facts (weights, settings) are unchanged is not
    measured again; every new one is on disk before the next is begun."""

    def __init__(self, folder: Path, stage: str, scale: str, command: str) -> None:
        self.file = folder / f"reproduce-{stage}.json"
        self.head = {"kind": f"reproduce {stage}", "scale": scale}
        self.command = command
        self.entries: dict[str, Any] = {}
        if self.file.exists():
            found = read(self.file)
            if found["scale"] != scale:
                raise ArmdError(
                    f"{self.file} is of scale {found['scale']}; give --results another folder"
                )
            self.entries = found["entries"]

    def entry(
        self, name: str, facts: dict[str, Any], measure: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The figures of `name`, measured unless they are there already."""
        facts = json.loads(json.dumps(facts))
        before = self.entries.get(name)
        if before is not None and before["facts"] == facts:
            return before["figures"]
        began = time.perf_counter()
        figures = measure()
        print(f"  {name}: {short(figures)} ({time.perf_counter() - began:.0f} s)", flush=True)
        self.entries[name] = {
            "facts": facts,
            "figures": figures,
            "command": self.command,
            "date": time.strftime("%Y-%m-%d"),
        }
        self.save()
        return figures

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**self.head, "entries": self.entries}, indent=1)
        replace_text(self.file, text + "\n")


def read(file: Path) -> dict[str, Any]:
    """A stage's file."""
    try:
        found = json.loads(file.read_text("utf-8"))
        if isinstance(found["scale"], str) and all(map(is_entry, found["entries"].values())):
            return found
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        pass
    raise ArmdError(f"{file} holds no results of a study; move it away")


def is_entry(entry: Any) -> bool:
    kinds = {"facts": dict, "figures": dict, "date": str}
    return all(isinstance(entry[name], kind) for name, kind in kinds.items())


def short(figures: dict[str, Any]) -> str:
    """The numbers of an entry in one line."""
    numbers = {k: v for k, v in figures.items() if isinstance(v, (int, float))}
    return ", ".join(f"{name} {value:.4g}" for name, value in list(numbers.items())[:6])
