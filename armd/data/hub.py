"""Data sets of the Hugging Face hub, streamed. Is the hub there? Asked once, quickly: its client
would retry for a minute."""

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zipfile import is_zipfile

from ..errors import ArmdError, first_line
from ..model.folder_check import check_inside


def hub_reachable(timeout: float = 5.0) -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True  # only the proxy knows
    try:
        socket.create_connection(endpoint(), timeout).close()
    except OSError:
        return False
    return True


def endpoint() -> tuple[str, int]:
    """The hub's host and port."""
    named = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        host = urlsplit(named)
        port = host.port or (80 if host.scheme == "http" else 443)
    except ValueError as error:
        raise ArmdError(f"HF_ENDPOINT={named}: {error}; give the address of a hub") from None
    return host.hostname or "huggingface.co", port


def require_hub(what: str, instead: str) -> None:
    if not hub_reachable():
        raise ArmdError(f"{what}: the Hugging Face hub is not reachable; {instead}")


PARQUET = "refs/convert/parquet"
"""The branch in which the hub keeps every data set as plain files, CONFIG/SPLIT/*.parquet."""
TEXTS = ("json", "csv", "parquet", "arrow", "text")
"""The library's readers of rows that hold text."""


def hub_rows(
    name: str, config: str | None, split: str, revision: str | None
) -> Iterable[dict[str, Any]]:
    """The rows of a split, streamed. `name` may be a local folder of the same layout. Media stay as
    they are: reading them would open whatever files and addresses the rows name."""
    rows: Any = opened(name, config, split, revision)
    if not rows.features:
        return rows
    from datasets import Json

    quoted = [column for column, kind in rows.features.items() if isinstance(kind, Json)]
    return (unquoted(row, quoted) for row in rows.decode(False))


def unquoted(row: dict[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """The same with what these columns hold as JSON. `datasets` keeps a column so whose rows are of
    several types; not decoding media leaves it so."""
    texts = {name: row[name] for name in columns if isinstance(row[name], str)}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}


def opened(name: str, config: str | None, split: str, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise ArmdError("hf: sources need datasets: pip install 'armd[eval]'") from None
    if revision != PARQUET:
        builder = datasets.load_dataset_builder(name, config, revision=revision)
        if builder.name not in TEXTS:
            raise ArmdError(
                f"hf:{name} is read by the library's '{builder.name}', which may unpickle and open "
                f"anything; only files of {', '.join(TEXTS)} are read"
            )
        return builder.as_streaming_dataset(split=split)
    # by path: `datasets` knows the configurations of this branch under no one name
    config = config or "default"
    if Path(name).is_dir():
        files = parquet_files(Path(name), config, split)
    else:
        files = [f"hf://datasets/{name}@{PARQUET}/{config}/{split}/*.parquet"]
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)


def check_local(folder: Path) -> None:
    """Raise if a folder in the hub's form leads out of itself: by a link, by metadata that say
    which files to read, or by names that are addresses to the library, also inside of archives."""
    check_inside(folder)
    for path in folder.rglob("*"):
        if "::" in path.name or (path.is_file() and is_zipfile(path)):
            raise ArmdError(
                f"{path} is an archive, or named like an address; put plain files there"
            )
    if (metadata := folder / ".huggingface.yaml").exists():
        raise ArmdError(f"{metadata} may name files to read, which is refused; remove it")
    readme = folder / "README.md"
    if not readme.is_file():
        return
    from huggingface_hub import DatasetCard

    try:
        configurations = DatasetCard.load(readme).data.get("configs") or []
    except Exception as error:  # yaml raises its own
        reason = first_line(error)
        raise ArmdError(f"cannot read the metadata of {readme} ({reason}); remove them") from None
    if any("data_files" in one or "data_dir" in one for one in configurations):
        raise ArmdError(
            f"{readme} names files to read (data_files or data_dir), which is refused; remove "
            "that, or prepare the files themselves"
        )


def parquet_files(root: Path, config: str, split: str) -> list[str]:
    found = sorted(str(file) for file in (root / config / split).glob("*.parquet"))
    if not found:
        there = sorted(
            {"/".join(f.relative_to(root).parts[:2]) for f in root.glob("*/*/*.parquet")}
        )
        raise ArmdError(
            f"{root} has no {config}/{split}; it has {', '.join(there) or 'no parquet files'}"
        )
    return found
