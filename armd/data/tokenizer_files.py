"""May the files of a tokenizer's folder be opened? No code of theirs is ever run, and none of them
may lie elsewhere."""

import json
from pathlib import Path

from ..errors import ArmdError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "config.json",
)
MOST_BYTES = 1 << 28


def check_tokenizer_files(folder: Path) -> None:
    """Raise for files that are links out of the folder, too large, damaged, or that ask for code of
    their own to be run."""
    root = folder.resolve()
    # the hub's cache holds its files as links into a folder beside the snapshot
    hub = root.parent.parent / "blobs" if root.parent.name == "snapshots" else root
    for name in FILES:
        path = folder / name
        if not path.exists() and not path.is_symlink():
            continue
        if not any(path.resolve().is_relative_to(place) for place in (root, hub)):
            raise ArmdError(f"{path} is a link that leaves {folder}; put the file itself there")
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ArmdError(f"{path} is no file of a tokenizer; put its copy back")
        if path.suffix == ".json":
            _check_json(path)


def _check_json(path: Path) -> None:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArmdError(f"{path} is damaged ({error}); put its copy back") from None
    if not isinstance(content, dict):
        raise ArmdError(f"{path} is damaged: it holds no table; put its copy back")
    mapped = content.get("auto_map")
    asks = mapped.get("AutoTokenizer") if isinstance(mapped, dict) else mapped
    if asks:
        raise ArmdError(
            f"{path} asks to run code of its own (auto_map), which is refused; remove that entry, "
            "or use a tokenizer with a tokenizer.json"
        )
