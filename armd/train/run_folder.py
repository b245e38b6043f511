"""A run's folder: config.json, data.json, metrics.jsonl, checkpoints, samples, export."""

import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

from ..data.dataset import Dataset
from ..errors import ArmdError
from ..runtime.atomic_files import write_text
from .presets import PRESETS, preset
from .recipe import Recipe, as_json, differences, from_dict

CONFIG, DATA, METRICS = "config.json", "data.json", "metrics.jsonl"


def open_run(recipe: Recipe, dataset: Dataset) -> Path:
    """The folder of this recipe's run: a new one, or one that holds the same recipe and goes on.
    Raises, with nothing written, for a folder of anything else."""
    folder = Path(recipe.out)
    if not (folder / CONFIG).exists():
        if folder.exists() and any(folder.iterdir()):
            raise ArmdError(f"{folder} is no run but is not empty; choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / DATA, json.dumps(data_facts(dataset)) + "\n")
        write_text(folder / CONFIG, as_json(recipe))
        return folder
    for name, before, now in differences(read_recipe(folder), recipe):
        flag = "--" + name.replace("_", "-")
        raise ArmdError(
            f"{folder} is a run of another config: {name} is {before} there and {now} here; "
            f"use {flag} {before}, or choose another --out"
        )
    before, now = json.loads((folder / DATA).read_text()), data_facts(dataset)
    if before != now:
        what = "tokenizer" if before["tokenizer"] != now["tokenizer"] else "tokens"
        raise ArmdError(
            f"the {what} in {recipe.data} are not the ones that {folder} was trained on; "
            "give --data the same dataset, or choose another --out"
        )
    return folder


def read_recipe(folder: Path | str) -> Recipe:
    """The recipe a run was started with."""
    path = Path(folder) / CONFIG
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ArmdError(f"{folder} is no run: it has no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise ArmdError(f"cannot read {path}: {error}") from None
    name = values.get("preset", "")
    return from_dict(values, preset(name) if name in PRESETS else Recipe(), str(path))


def data_facts(dataset: Dataset) -> dict[str, Any]:
    """What tells one dataset from another, wherever it lies."""
    sums = [
        shard["sha256"]
        for name in sorted(dataset.manifest["splits"])
        for shard in dataset.manifest["splits"][name]["shards"]
    ]
    return {
        "tokenizer": dataset.manifest["tokenizer"]["hash"],
        "tokens": hashlib.sha256("".join(sums).encode()).hexdigest(),
        "vocab_size": dataset.vocab_size,
    }


class Metrics:
    """metrics.jsonl: a line for each report, never two that tell a step differently."""

    def __init__(self, folder: Path, *, step: int) -> None:
        """Goes on after `step`; what was written beyond it will be done again, so it is dropped."""
        self.path = folder / METRICS
        rows = [row for row in read_metrics(folder) if row["step"] <= step]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self.file: IO[str] = self.path.open("a", encoding="utf-8")

    def write(self, **figures: Any) -> None:
        self.file.write(json.dumps(figures) + "\n")
        self.file.flush()

    def sync(self) -> None:
        """Before a checkpoint: what led to it must not be lost if it is kept."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a run; a last line that was cut off is left out."""
    path = Path(folder) / METRICS
    if not path.exists():
        return []
    rows = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
    return rows
