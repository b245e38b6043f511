"""A run's folder: config.json, data.json, metrics.jsonl, checkpoints, samples, export."""

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..data.dataset import Dataset
from ..data.tokenizer import find_tokenizer, tokenizer_hash
from ..errors import ArmdError
from ..pretrained import model_folder
from ..runtime.atomic_files import open_plain, read_text, refuse_link, replace_text
from ..runtime.atomic_folders import finish_replacing, made_folder, unexchanged
from ..runtime.lock import Held, locked
from .presets import PRESETS, preset
from .recipe import Recipe
from .recipe_files import as_json, differences, from_dict, lengthened
from .saved_checkpoint import steps_in

EARLIER = {"shuffle": "among", "rho_of": "tokens"}
"""What the curriculum of a run does whose config.json was written before these fields were."""
CONFIG, DATA, METRICS, LOCK = "config.json", "data.json", "metrics.jsonl", ".lock"
SUM = "sha256"
CHECKPOINTS, EXPORT, KEPT, ADAPTER = "checkpoints", "export", "exports", "adapter"
BASE, SAMPLES, BOARD = "base", "samples", "tensorboard"
FOLDERS = (CHECKPOINTS, EXPORT, KEPT, ADAPTER, BASE, SAMPLES, BOARD)
"""What a run writes into."""


@contextlib.contextmanager
def open_run(recipe: Recipe, dataset: Dataset) -> Iterator[Held]:
    """The folder of this recipe's run: a new one, or one that holds the same recipe and goes on.
    Raises, with nothing written, for a folder of anything else, and if another process trains
    there. Inside, the run is ours, as long as what is yielded says so; a new one is written by
    begin_run, and leaves no folder if it comes to nothing before."""
    folder = Path(recipe.out)
    with contextlib.ExitStack() as stack:
        try:
            check_place(folder)
            stack.enter_context(made_folder(folder))
            held = stack.enter_context(
                locked(
                    folder / LOCK,
                    f"process trains in {folder}",
                    "wait for it, or choose another folder",
                )
            )
            if (folder / CONFIG).exists():
                _check_same(folder, recipe, dataset)
            for name in (EXPORT, ADAPTER):
                finish_replacing(folder / name)
        except OSError as error:
            raise _unwritable(folder, error) from None
        yield held


def _unwritable(folder: Path, error: OSError) -> ArmdError:
    return ArmdError(f"cannot write to {folder} ({error.strerror or error}); choose another folder")


def check_place(folder: Path, recipe: Recipe | None = None) -> None:
    """Raise, with nothing written, for a folder of anything but a run; with a recipe, for a run of
    another config too."""
    for name in FOLDERS:  # what a link leads to would be written and removed
        refuse_link(folder / name)
    if folder.exists() and not (folder / CONFIG).exists():
        _check_new(folder)
    if recipe and (folder / CONFIG).exists():
        _check_config(folder, recipe)


def _check_new(folder: Path) -> None:
    """Raise unless a new run may begin in a folder that exists."""
    if not folder.is_dir():
        raise ArmdError(f"{folder} is a file; choose another folder")
    # what a run leaves that was killed before it had written its config
    begun = {LOCK, DATA, f".{DATA}.tmp", f".{CONFIG}.tmp"}
    if any(entry.name not in begun for entry in folder.iterdir()):
        raise ArmdError(f"{folder} is no run but is not empty; choose another folder")


def begin_run(folder: Path, recipe: Recipe, dataset: Dataset) -> None:
    """Write what a new run is, once nothing is left that could refuse it."""
    if (folder / CONFIG).exists():
        return
    try:
        replace_text(folder / DATA, json.dumps(with_sum(data_facts(dataset))) + "\n")
        replace_text(folder / CONFIG, as_json(recipe))
    except OSError as error:
        raise _unwritable(folder, error) from None


def _check_config(folder: Path, recipe: Recipe) -> tuple[Recipe, Recipe]:
    """Raise unless a run has the same recipe; that it began with, and the same at this length."""
    began = read_recipe(folder)
    longer = lengthened(began, recipe, steps_in(folder / CHECKPOINTS))
    for name, before, now in differences(longer, recipe):
        base, why = recipe.adapt.base_model, ""
        if name == "base":
            raise ArmdError(
                f"{folder} began with other weights than {base} has now; put those back, or "
                "choose another folder to adapt the new ones in"
            )
        if name == "start_sum":
            raise ArmdError(
                f"{folder} began with another adapter than {recipe.adapt.start} holds now; put "
                "that back, or choose another folder"
            )
        if name == "sbp_steps" and base:
            name = "steps"
        elif name in ("steps", "sbp_steps"):
            why = " (a run becomes longer only if its schedule is constant, before its next phase)"
        raise ArmdError(
            f"{folder} is a run of another config: {name} is {before} there and {now} here; "
            f"give {before} again, or choose another folder{why}"
        )
    return began, longer


def _check_same(folder: Path, recipe: Recipe, dataset: Dataset) -> None:
    """Raise unless a run has the same recipe and data."""
    began, longer = _check_config(folder, recipe)
    before, now = read_data_facts(folder), data_facts(dataset)
    if before is None:
        warnings.warn(f"{folder / DATA} is damaged; written anew from {recipe.data}", stacklevel=2)
        replace_text(folder / DATA, json.dumps(with_sum(now)) + "\n")
    elif before != now:
        same = before.get("tokenizer") == now["tokenizer"]
        raise ArmdError(
            f"{recipe.data} has {'other tokens' if same else 'another tokenizer'} than {folder}; "
            "give the same dataset, or choose another folder"
        )
    if longer != began:
        replace_text(folder / CONFIG, as_json(longer))


def read_data_facts(folder: Path) -> dict[str, Any] | None:
    """What data.json says; None where it is missing or damaged. Earlier ones have no checksum."""
    try:
        found = json.loads(read_text(folder / DATA))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    facts = {name: value for name, value in found.items() if name != SUM}
    return facts if SUM not in found or with_sum(facts) == found else None


def with_sum(facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {SUM: hashlib.sha256(json.dumps(facts).encode()).hexdigest()}


def read_recipe(folder: Path | str) -> Recipe:
    """The recipe a run was started with."""
    path = Path(folder) / CONFIG
    try:
        values = json.loads(read_text(path))
    except FileNotFoundError:
        raise ArmdError(f"{folder} is no run: it has no {CONFIG}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArmdError(f"cannot read {path}: {error}") from None
    if not isinstance(values, dict):
        raise ArmdError(f"{path} is damaged: it holds no table of fields; put its copy back")
    if "model_type" in values and "preset" not in values:
        raise ArmdError(f"{folder} holds a model, which is no run; choose another folder")
    name = values.get("preset", "")
    if isinstance(values.get("curriculum"), dict):
        values["curriculum"] = EARLIER | values["curriculum"]
    return from_dict(
        values, preset(name) if isinstance(name, str) and name in PRESETS else Recipe(), str(path)
    )


def data_facts(dataset: Dataset) -> dict[str, Any]:
    """What identifies a dataset, wherever it lies."""
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


def check_start(recipe: Recipe, dataset: Dataset) -> None:
    """Raise if the weights to begin with are of other tokens than the dataset's; with a step to go
    on from, of another dataset or network."""
    if not recipe.start:
        return
    found = differences(read_recipe(recipe.start), recipe) if recipe.start_step else ()
    for name, before, now in found:
        if name in ("model", "n_heads", "n_two_stream"):  # which no shape of a weight tells
            raise ArmdError(f"{recipe.start} has {name} {before}, this recipe {now}; give {before}")
    there, ours = read_data_facts(Path(recipe.start)) or {}, data_facts(dataset)
    told, place = there.get("tokenizer"), Path(recipe.start) / EXPORT
    if told is None and not recipe.start_step:  # a model alone
        place = model_folder(recipe.start)
        told = unexchanged(place, lambda: _tokenizer_in(place, ours["tokenizer"]))
    if told not in (None, ours["tokenizer"]):
        raise ArmdError(
            f"{recipe.start} was trained with another tokenizer than {recipe.data} has; prepare "
            f"the text with the one in {place}"
        )
    if recipe.start_step and there.get("tokens") not in (None, ours["tokens"]):
        raise ArmdError(
            f"{recipe.start} was trained on another dataset than {recipe.data}, so that its step "
            f"{recipe.start_step} is none of this run; start from its weights alone"
        )


def _tokenizer_in(folder: Path, ours: str) -> str | None:
    """The hash of a model's tokenizer, as datasets are made with it, with or without a pad token:
    `ours`, if it may be that; None without one."""
    if not (folder / "tokenizer.json").exists():
        return None
    kinds = (find_tokenizer(str(folder), (), rows=rows) for rows in (False, True))
    found = [tokenizer_hash(kind.backend) for kind in kinds]
    return ours if ours in found else found[0]


class Metrics:
    """metrics.jsonl: a line for each report, never two for one step that differ."""

    def __init__(self, folder: Path, *, step: int, saved: str | None = None) -> None:
        """Continues after `step`. Rows beyond it are dropped, because those steps are trained
        again. `saved` is the copy that the checkpoint of `step` keeps: where the file differs from
        it, the file is damaged, is kept under another name, and is written anew from the copy."""
        self.path = folder / METRICS
        rows, broken = parse_rows(self._read())
        rows = [row for row in rows if row["step"] <= step]
        if saved is not None and rows != (kept := parse_rows(saved)[0]):
            self._keep_damaged(f"repaired from the checkpoint of step {step}")
            rows = kept
        elif broken:
            self._keep_damaged(f"{broken} lines could not be read and are left out")
        self.text = "".join(json.dumps(row) + "\n" for row in rows)
        replace_text(self.path, self.text)
        self.file: IO[str] = self.path.open("a", encoding="utf-8")

    def _read(self) -> str:
        try:
            return metrics_text(self.path)
        except OSError:
            return ""

    def _keep_damaged(self, what: str) -> None:
        aside = self.path.with_name(f"damaged-{METRICS}")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        warnings.warn(f"{self.path} was damaged: {what}; see {aside.name}", stacklevel=2)

    def write(self, **figures: Any) -> None:
        line = json.dumps(figures) + "\n"
        self.file.write(line)
        self.file.flush()
        self.text += line

    def sync(self) -> None:
        """Before a checkpoint: what led to it must not be lost if it is kept."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a run; what cannot be read, as a last line that was cut off, is left out."""
    path = Path(folder) / METRICS
    return parse_rows(metrics_text(path))[0] if path.exists() else []


def metrics_text(path: Path) -> str:
    """What is in metrics.jsonl; what is no UTF-8 there damages its line alone."""
    with open_plain(path) as file:
        return file.read().decode("utf-8", "replace")


def parse_rows(text: str) -> tuple[list[dict[str, Any]], int]:
    """The rows of a text of JSON lines, and how many lines before the last one are damaged."""
    rows, broken = [], []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        step = row.get("step") if isinstance(row, dict) else None
        if type(step) is int and 0 <= step < 1 << 62:
            rows.append(row)
        else:
            broken.append(number)
    cut = bool(broken) and broken[-1] == len(lines) - 1 and not text.endswith("\n")
    return rows, len(broken) - cut
