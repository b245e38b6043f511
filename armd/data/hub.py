"""Data sets of the Hugging Face hub, streamed. Is the hub there? Asked once, quickly: its client
would retry for a minute."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ArmdError


def hub_reachable(timeout: float = 5.0) -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True  # only the proxy knows
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = host.port or (80 if host.scheme == "http" else 443)
    try:
        socket.create_connection((host.hostname or "huggingface.co", port), timeout).close()
    except OSError:
        return False
    return True


def require_hub(what: str, instead: str) -> None:
    if not hub_reachable():
        raise ArmdError(f"{what}: the Hugging Face hub is not reachable; {instead}")


PARQUET = "refs/convert/parquet"
"""The branch in which the hub keeps every data set as plain files, CONFIG/SPLIT/*.parquet."""


def hub_rows(
    name: str, config: str | None, split: str, revision: str | None
) -> Iterable[dict[str, Any]]:
    """The rows of a split, streamed. `name` may be a local folder of the same layout."""
    try:
        import datasets
    except ImportError:
        raise ArmdError("hf: sources need datasets: pip install 'armd[eval]'") from None
    if revision != PARQUET:
        return datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)  # type: ignore[return-value]
    # by path: `datasets` knows the configurations of this branch under no one name
    config = config or "default"
    if Path(name).is_dir():
        files = parquet_files(Path(name), config, split)
    else:
        files = [f"hf://datasets/{name}@{PARQUET}/{config}/{split}/*.parquet"]
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)  # type: ignore[return-value]


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
