"""`armd verify FOLDER`: is each byte of a run, an exported model or a dataset as it was written?"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import tyro

from ..errors import ArmdError
from ..runtime.standard_streams import printable

Found = tuple[str, str | None]
"""A part, and what is wrong with it, or None."""


def verify(folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Compare every file with its checksum: of a run (its checkpoints, metrics and exports), of an
    exported model, or of a dataset.

    Args:
        folder: The folder of a run, an export or a dataset.
    """
    parts = list(check_folder(folder))
    for name, wrong in parts:
        said = f"{'damaged' if wrong else 'whole  '}  {name}{f': {wrong}' if wrong else ''}"
        print(printable(said))
    if damaged := [name for name, wrong in parts if wrong]:
        raise ArmdError(
            f"{len(damaged)} of {len(parts)} parts of {folder} are damaged, the first is "
            f"{damaged[0]}; put a copy back, or make it again"
        )


def check_folder(folder: Path) -> Iterator[Found]:
    """Each part of what lies in a folder."""
    from ..data.manifest import MANIFEST
    from ..runtime.atomic_files import SUMS, damaged_files
    from ..train.saved_checkpoint import FACTS

    if not folder.is_dir():
        raise ArmdError(f"no folder {folder}; name a run, an export or a dataset")
    if (folder / MANIFEST).exists():
        yield from check_dataset(folder)
    elif (folder / FACTS).exists():
        yield folder.name, checkpoint_damage(folder)
    elif (folder / "checkpoints").is_dir() or (folder / "export").is_dir():
        yield from check_run(folder)
    elif (folder / "config.json").exists():
        yield from check_model(folder)
    elif (wrong := damaged_files(folder)) is not None:
        yield f"files with checksums in {SUMS}", "; ".join(wrong) or None
    else:
        raise ArmdError(f"{folder} is no run, no exported model and no dataset; name one")


def check_dataset(folder: Path) -> Iterator[Found]:
    from ..data.dataset import check_shard, open_dataset
    from ..data.manifest import DTYPES, MANIFEST

    dataset, wrong = None, None
    try:
        dataset = open_dataset(folder)
    except ArmdError as error:
        wrong = str(error)
    yield MANIFEST, wrong
    if dataset is None:
        return
    width = DTYPES[dataset.manifest["dtype"]]
    for split in dataset.manifest["splits"].values():
        for shard in split["shards"]:
            yield (
                shard["file"],
                _error(check_shard, folder / shard["file"], shard, width, verify=True),
            )
    yield "tokenizer", _error(dataset.tokenizer)


def check_run(folder: Path) -> Iterator[Found]:
    from ..runtime.atomic_files import damaged_files
    from ..runtime.atomic_folders import unexchanged
    from ..train.checkpoint import newest_written
    from ..train.run_folder import (
        ADAPTER,
        BASE,
        CHECKPOINTS,
        DATA,
        EXPORT,
        KEPT,
        LOCK,
        METRICS,
        read_data_facts,
        read_recipe,
    )
    from ..train.saved_checkpoint import name_of, steps_in

    yield "config.json", _error(read_recipe, folder)
    facts = read_data_facts(folder)  # written before config.json: each run has them
    yield DATA, None if facts else "it is missing or not as it was written; the run writes it anew"
    saved = folder / CHECKPOINTS
    for step in steps_in(saved):
        place = saved / name_of(step)
        wrong = unexchanged(place, lambda place=place: checkpoint_damage(place))
        if place.exists():  # a run that trains meanwhile removes old ones
            yield f"{CHECKPOINTS}/{place.name}", wrong
    newest = newest_written(saved)
    if newest is not None and newest not in steps_in(saved) and newest == newest_written(saved):
        yield f"{CHECKPOINTS}/newest.json", "it names no checkpoint that is there"
    file = folder / METRICS
    if file.exists():
        yield METRICS, _error(check_metrics, file, saved)
    elif steps_in(saved):
        yield METRICS, "it is missing; the run writes it anew when it goes on"
    for name in (ADAPTER, BASE):
        place = folder / name
        if (wrong := unexchanged(place, lambda place=place: damaged_files(place))) is not None:
            yield name, "; ".join(wrong) or None
    for place in (folder / EXPORT, *sorted((folder / KEPT).glob("step-*"))):
        shown = place.relative_to(folder)
        if place.is_symlink():
            yield str(shown), "it is a link, which may lead anywhere"
        elif place.exists():
            found = unexchanged(place, lambda place=place: list(check_model(place, exported=True)))
            yield from ((f"{shown}/{name}", wrong) for name, wrong in found)
    # the first export follows its checkpoint: one that trains, or was killed, may have none yet
    if steps_in(saved) and not (folder / EXPORT).exists() and not (folder / LOCK).exists():
        yield EXPORT, "it is missing; the run writes it anew when it goes on"


def checkpoint_damage(place: Path) -> str | None:
    from ..train.saved_checkpoint import damage

    try:
        return damage(place)
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def check_metrics(file: Path, saved: Path) -> None:
    """Each checkpoint keeps the rows up to its step, with a checksum."""
    from ..train.run_folder import metrics_text, parse_rows
    from ..train.saved_checkpoint import ROWS, name_of, steps_in

    steps = steps_in(saved)  # before the rows: a run may train meanwhile
    rows, broken = parse_rows(metrics_text(file))
    if broken:
        raise ArmdError(f"{broken} lines cannot be read")
    for step in reversed(steps):
        place = saved / name_of(step)
        if checkpoint_damage(place) is None and (place / ROWS).exists():
            kept = parse_rows(metrics_text(place / ROWS))[0]
            if kept != [row for row in rows if row["step"] <= step]:
                raise ArmdError(f"it is not what the checkpoint of step {step} keeps of it")
            return


def check_model(folder: Path, *, exported: bool = False) -> Iterator[Found]:
    """`exported`: by a run, which writes checksums."""
    from ..pretrained import OURS, check_sizes, read_config
    from ..runtime.atomic_files import SUMS, damaged_files

    wrong, kind = damaged_files(folder), OURS[0]
    with suppress(ArmdError):  # check_sizes says what is wrong with it
        kind = str(read_config(folder).get("model_type"))
    misfit = _error(check_sizes, folder) if kind in OURS else None
    if wrong is None and exported:
        wrong = ["there are none: it was not exported by this armd"]
    if wrong is None and misfit is None:  # such as a folder of save_pretrained
        raise ArmdError(
            f"{folder} is a model of '{kind[:40]}' without checksums ({SUMS}): there is nothing "
            "to compare it with"
        )
    if kind in OURS:
        yield "weights", misfit
    if wrong is not None:
        yield f"files with checksums in {SUMS}", "; ".join(wrong) or None


def _error(work, *args, **options) -> str | None:
    """The message of the error that work raises, if it does."""
    try:
        work(*args, **options)
    except (ArmdError, OSError) as error:
        return str(error)
    return None
