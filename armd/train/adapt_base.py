"""The model that an adaptation began with. The run keeps it until it ends: a base that is itself a
run, and trains on, replaces its export."""

import os
import shutil
from pathlib import Path

from ..convert.adapter import fingerprint
from ..convert.weight_file import check_disk
from ..errors import ArmdError
from ..pretrained import model_folder
from ..runtime.atomic_files import SUMS, copy_plain_files, damaged_files, write_sums
from ..runtime.atomic_folders import empty_folder, replaced_folder, unexchanged
from ..runtime.lock import Check
from .recipe import Recipe
from .run_folder import ADAPTER, BASE, CHECKPOINTS, CONFIG
from .saved_checkpoint import steps_in


def began_with(out: Path, named: Path) -> Path:
    """Where to read the model to adapt: what the run in `out` keeps of it, or what was named."""
    kept = out / BASE
    begun = (out / CONFIG).is_file() and kept.is_dir() and not kept.is_symlink()
    return kept if begun else named


def base_folder(recipe: Recipe) -> Path:
    """The same, of a run that is ours."""
    kept = Path(recipe.out) / BASE
    return kept if kept.is_dir() else model_folder(recipe.adapt.base_model)


def keep_base(recipe: Recipe, check: Check) -> None:
    """Keep the base in the run's folder, which must be locked, and ours by `check`, unless it is
    there."""
    folder = Path(recipe.out)
    if (folder / BASE).is_dir():
        return
    named = model_folder(recipe.adapt.base_model)
    with replaced_folder(folder / BASE, check) as aside:
        unexchanged(named, lambda: _link_files(named.resolve(), empty_folder(aside)))
        fits = fingerprint(aside) == recipe.adapt.base
        check()
        if not fits:
            if not steps_in(folder / CHECKPOINTS):
                (folder / CONFIG).unlink()  # nothing was learnt: the next call begins anew
            raise ArmdError(
                f"{named} was replaced while {folder} began; give the same command again"
            )
        write_sums(aside)


def check_kept(recipe: Recipe) -> None:
    """Raise if somebody wrote into the files of the base, which have a second name here."""
    folder = Path(recipe.out)
    if damaged_files(folder / BASE):
        raise ArmdError(
            f"the weights of {recipe.adapt.base_model} were changed while {folder} learnt; put the "
            "old ones back into that file and give the same command again: nothing is lost, "
            f"{folder / ADAPTER} is whole"
        )


def _link_files(folder: Path, out: Path) -> None:
    """All but GGUF. Weights as second names of the same files, which take no room and stay when the
    first names go; as copies where the disk is another one."""
    copy_plain_files(folder, out, but=(SUMS, ".safetensors", ".gguf"))
    for file in sorted(folder.glob("*.safetensors")):
        try:
            os.link(file, out / file.name)
        except OSError:
            check_disk(out, file.stat().st_size)
            shutil.copyfile(file, out / file.name)
