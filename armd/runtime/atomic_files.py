"""Files that are whole or not there: written aside, flushed to the disk, then renamed into place.
Nothing here needs torch."""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO

from ..model.errors import ArmdError

SUMS = "sha256.json"


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Replace a file that a user named by `text`, at once. A device, such as /dev/null, or a pipe
    is written to, not replaced."""
    write_bytes(path, text.encode("utf-8"))


def write_figures(path: Path, figures: object) -> None:
    """The same, as JSON, for --json; its folder is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(figures, indent=1) + "\n")


def write_bytes(path: Path, data: bytes) -> None:
    """The same, of a picture."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "It is a folder", str(path))
    if path.parent == Path("/dev") or is_device(path):
        path.write_bytes(data)
    else:
        replace_bytes(path, data)


def is_device(path: Path) -> bool:
    """Or a pipe: it is written to, never replaced, and nothing is put beside it."""
    return path.exists() and not path.is_file()


def replace_text(path: Path, text: str) -> None:
    """Replace a file of ours by `text`, at once, and whatever else lies in its place."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, data: bytes) -> None:
    """A file or link beside it under the other name goes first: it may lead somewhere else. Who may
    read the file that is replaced may read the new one, and its owner may go on to write to it."""
    aside = aside_of(path)
    aside.unlink(missing_ok=True)
    try:
        with aside.open("xb") as file:
            if path.is_file() and not path.is_symlink():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777 | stat.S_IRUSR | stat.S_IWUSR)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except OSError:  # such as a full disk
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def aside_of(path: Path) -> Path:
    """The other name, under which a file is written. A name has at most 255 bytes."""
    name = os.fsencode(path.name)
    short = path.name if len(name) <= 250 else hashlib.sha256(name).hexdigest()
    return path.with_name(f".{short}.tmp")


MOST_TEXT = 1 << 28
"""Bytes of a list, a config or figures that armd wrote."""


def read_text(path: Path) -> str:
    """The text of a plain file. A pipe would be waited for without end, and a device, such as
    /dev/zero, read without end: both are an OSError, and so are more than MOST_TEXT bytes."""
    with open_plain(path) as file:
        return read_most(file, path, MOST_TEXT).decode("utf-8")


def read_named(path: Path, most: int) -> bytes:
    """What a file, or a pipe, that a user named holds; an OSError for more than `most` bytes: a
    device, such as /dev/zero, has no end."""
    with path.open("rb") as file:
        return read_most(file, path, most)


def read_most(file: IO[bytes], path: Path, most: int) -> bytes:
    found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"It holds more than {most >> 20} MB", str(path))
    return found


def open_plain(path: Path) -> BufferedReader:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe: does not wait
    file = os.fdopen(handle, "rb") if stat.S_ISREG(os.fstat(handle).st_mode) else None
    if file is None:
        os.close(handle)
        raise OSError(errno.EINVAL, "It is no plain file", str(path))
    return file


def sync_tree(folder: Path) -> None:
    """Flush every file of a folder to the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def remove(path: Path) -> None:
    """Remove a file, a folder or a link of ours, if there is one; what a link leads to stays."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def read_plain_files(folder: Path, *, but: Collection[str] = ()) -> dict[str, bytes]:
    """The files of a folder, which are small, by name, but for those that end so."""
    paths = (folder, *sorted(folder.iterdir()))
    for path in paths:
        refuse_link(path)
    kept = (path for path in paths if path.is_file() and not path.name.endswith(tuple(but)))
    return {path.name: path.read_bytes() for path in kept}


def copy_plain_files(folder: Path, out: Path, *, but: Collection[str] = ()) -> None:
    """Copy them."""
    out.mkdir(parents=True, exist_ok=True)
    for name, content in read_plain_files(folder, but=but).items():
        (out / name).write_bytes(content)


def refuse_link(path: Path) -> None:
    """Before it is copied or written to: what a link leads to, anywhere on this machine, would be
    given away with the copy, or changed."""
    if path.is_symlink():
        raise ArmdError(f"{path} is a link, which may lead anywhere; put the file itself there")


def write_sums(folder: Path, *, leave_out: str = SUMS) -> None:
    """Write the checksums of a folder's files into it, but for those whose names end so."""
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != SUMS)
    files = (p for p in found if not p.name.endswith(leave_out))
    sums = {path.relative_to(folder).as_posix(): hash_file(path) for path in files}
    replace_text(folder / SUMS, json.dumps(sums, indent=1) + "\n")


def read_sums(folder: Path) -> dict[str, str]:
    """The checksums in a folder, by name; an OSError or a ValueError where there are none."""
    try:
        return dict(json.loads(read_text(folder / SUMS)).items())
    except (AttributeError, RecursionError) as error:
        raise ValueError(f"{SUMS} is damaged") from error


def damaged_files(folder: Path) -> list[str] | None:
    """What is wrong with the files that a folder has checksums of, a few words each; None where it
    has no checksums."""
    try:
        sums = read_sums(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return [f"{SUMS} cannot be read"]
    wrong = []
    for name, digest in sums.items():
        try:
            inside = (folder / name).resolve().is_relative_to(folder.resolve())
            if not inside or hash_file(folder / name) != digest:
                wrong.append(f"{name} has another checksum")
        except PermissionError:
            wrong.append(f"{name[:80]} may not be read (chmod u+r)")
        except (OSError, ValueError):  # no such file, or no name of a file
            wrong.append(f"{name[:80]} is missing")
    return wrong


def hash_file(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
