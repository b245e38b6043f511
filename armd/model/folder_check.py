"""May the files of a folder be opened? It may come from anybody, and nothing in it may lead out."""

import os
import stat
from pathlib import Path

from .errors import ArmdError


def check_inside(folder: Path) -> None:
    """Raise if anything in a folder, at any depth, is a link that leaves it, or is no plain file,
    such as a pipe that is waited for without end. Nobody looks into hidden folders."""
    root = folder.resolve()
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            path = Path(place) / name
            if path.is_symlink():
                check_link(path, root)
            if not _is_plain(path):
                raise ArmdError(f"{path} is no plain file; copy or export {folder} again")


def check_link(path: Path, root: Path) -> None:
    """Raise for a link that leads out of the folder `root`. The cache of the hub's client holds its
    files as links into a folder beside the snapshot."""
    inside = (root, root.parent.parent / "blobs") if root.parent.name == "snapshots" else (root,)
    try:
        target = path.resolve(strict=False)
    except (OSError, RuntimeError):  # it leads to itself
        target = None
    if target is None or not any(target.is_relative_to(place) for place in inside):
        raise ArmdError(f"{path} is a link that leaves {root}; put the file itself there")


def _is_plain(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return True  # not there, or a link to nothing: whoever opens it says so
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
