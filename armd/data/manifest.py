"""Is a dataset's manifest whole? It may come from anybody: nothing in it is believed unchecked."""

import json
from pathlib import Path
from typing import Any

from ..errors import ArmdError
from ..runtime.atomic_files import (
    SUMS,
    damaged_files,
    read_text,
    replace_text,
    sync_tree,
    write_sums,
)

FORMAT = 1
MANIFEST = "manifest.json"
DTYPES = {"uint16": 2, "uint32": 4}
MOST_BYTES = 1 << 28
"""Of a manifest."""


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """The last file of a dataset but one: the checksums of it and of the tokenizer. Those of the
    shards are in the manifest."""
    sync_tree(folder)
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    write_sums(folder, leave_out=".bin")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a dataset, with every field of the kind it must have."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        manifest = json.loads(read_text(path))
    except NotADirectoryError:
        raise ArmdError(
            f"{folder} is a file, no dataset; make one: armd prepare {folder} --out FOLDER ..."
        ) from None
    except FileNotFoundError:
        raise ArmdError(
            f"no dataset in {folder}; make one: armd prepare ... --out {folder}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArmdError(f"cannot read {path}: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise ArmdError(f"{folder} has format {found}, this armd reads {FORMAT}; prepare it again")
    wrong = _wrong(manifest)
    if wrong:
        raise ArmdError(f"{path} is damaged: {wrong}; remove {folder} and prepare it again")
    if wrong := damaged_files(folder):
        raise ArmdError(
            f"{folder} is damaged: {wrong[0]}; remove it and prepare it again (if you changed it "
            f"on purpose, remove {SUMS} there)"
        )
    return manifest


def _wrong(manifest: dict[str, Any]) -> str | None:
    """What is wrong with a manifest, in a few words, or None."""
    tokenizer, splits, rows = (manifest.get(k) for k in ("tokenizer", "splits", "rows"))
    if manifest.get("dtype") not in [*DTYPES]:
        return f"dtype must be one of {', '.join(DTYPES)}"
    if "rows" not in manifest or (rows is not None and not _count(rows, 1)):
        return "rows must be a number of tokens"
    if not isinstance(manifest.get("options", {}), dict):
        return "its options are no table"
    named = isinstance(tokenizer, dict) and all(
        isinstance(tokenizer.get(name), str) for name in ("hash", "name")
    )
    if not isinstance(tokenizer, dict) or not named or "pad" not in tokenizer:
        return "it describes no tokenizer"
    size, most = tokenizer.get("vocab_size"), 1 << (8 * DTYPES[manifest["dtype"]])
    if not isinstance(size, int) or not _count(size, 1) or size > most:
        return "the vocabulary does not fit the dtype"
    for name in ("eos", "pad"):
        value = tokenizer.get(name)
        if value is None and name == "pad":
            continue
        if not isinstance(value, int) or not _count(value, 0) or value >= size:
            return f"{name} is no token"
    if not isinstance(splits, dict) or not splits:
        return "it has no splits"
    for name, split in splits.items():
        if wrong := _wrong_split(split):
            return f"split {name!r}: {wrong}"
    return None


def _wrong_split(split: Any) -> str | None:
    shards = split.get("shards") if isinstance(split, dict) else None
    if not isinstance(shards, list):
        return "it has no list of shards"
    for shard in shards:
        if not isinstance(shard, dict) or not _count(shard.get("tokens"), 0):
            return "a shard has no number of tokens"
        if not isinstance(shard.get("sha256"), str) or not _plain(shard.get("file")):
            return "a shard names no file of this folder, or has no checksum"
    if split.get("tokens") != sum(shard["tokens"] for shard in shards):
        return "its tokens are not those of its shards"
    return None


def _count(value: Any, low: int) -> bool:
    return type(value) is int and low <= value < 1 << 62


def _plain(name: Any) -> bool:
    """A file's name, which leads to no other folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")
