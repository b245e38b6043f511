"""What does a user's word name? A folder or hub name of Hugging Face, a GGUF file, or `smollm2`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.tokenizer import TextTokenizer, from_transformers, tokenizer_hash
from ..data.tokenizer_files import os_errors
from ..errors import ArmdError, first_line
from ..runtime.atomic_files import read_text
from ..runtime.atomic_folders import watched
from ..runtime.foreign_code import no_foreign_code
from ..runtime.weight_files import weight_files

if TYPE_CHECKING:
    import torch

    from ..model.shapes import Tensor

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


@dataclass(frozen=True)
class Source:
    """A pretrained model on disk, its tensors read one at a time."""

    name: str
    facts: Mapping[str, Any]
    """Its config, in transformers' names."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of each tensor, by transformers' name."""
    read: Callable[[str], Tensor]
    dtype: torch.dtype
    save_tokenizer: Callable[[Path], None]
    check: Callable[[], None]
    """Raises if the files are no longer those that were opened."""
    half_split: bool = True
    """How queries and keys are laid out; False: interleaved, as ours."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What else must not be lost on the way back."""


def open_source(word: str) -> Source:
    """The model that a word names, opened but not read."""
    if word == "smollm2" and not Path(word).exists():
        from .smollm2 import package_file

        word = str(package_file())
    path = Path(word)
    if path.suffix == ".gguf":
        from .gguf_source import open_gguf

        return open_gguf(path)
    return open_folder(path if path.is_dir() else downloaded(word), word)


def downloaded(name: str) -> Path:
    """The folder of a hub name: from the cache of the hub's client, else from the hub."""
    from huggingface_hub import snapshot_download

    from ..data.hub import require_hub

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, local_files_only=True))
    except Exception:  # not in the cache, or no name at all
        if name.count("/") > 1 or name.startswith((".", "/", "~")):
            raise ArmdError(f"no folder {name}; give a model folder or a GGUF file") from None
    require_hub(f"model '{name}'", "give a folder, a GGUF file or smollm2")
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # the hub's client raises many kinds
        reason = first_line(error)
        raise ArmdError(f"cannot get '{name}' from the hub: {reason}") from None


def open_folder(folder: Path, name: str) -> Source:
    """A folder of save_pretrained: config.json and safetensors, in one file or many."""
    import torch
    from safetensors import SafetensorError, safe_open

    from ..model.strict_model import check_weight_files

    check = watched(folder)
    facts = read_json(folder / "config.json", name)
    check_weight_files(folder)
    files = weight_files(folder)
    if not files and (folder / "export").is_dir():
        raise ArmdError(f"{name} is a run of ours already; use --to llama or --to gguf")
    if not files:
        raise ArmdError(
            f"no safetensors in {name}; save it with save_pretrained (pickled weights are never "
            "opened)"
        )
    place, shapes, kinds = {}, {}, set()
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                for tensor in opened.keys():  # noqa: SIM118 - no dict
                    if tensor in place:
                        raise ArmdError(
                            f"'{tensor}' is in {place[tensor].name} and in {file.name} of {name}; "
                            "leave the files of one version there"
                        )
                    part = opened.get_slice(tensor)
                    place[tensor], shapes[tensor] = file, tuple(part.get_shape())
                    kinds.add(part.get_dtype())
        except (OSError, SafetensorError) as error:
            raise ArmdError(f"{file} is damaged ({error}); copy it again") from None
    known = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    if wrong := kinds - known.keys():
        raise ArmdError(f"{name} holds weights of type {min(wrong)}; armd reads F32, F16, BF16")
    dtype = known[kinds.pop()] if len(kinds) == 1 else torch.float32

    def read(tensor: str) -> Tensor:
        with safe_open(place[tensor], "pt") as opened:
            return opened.get_tensor(tensor)

    return Source(name, facts, shapes, read, dtype, lambda out: copy_tokenizer(folder, out), check)


def read_json(file: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(read_text(file))
    except FileNotFoundError:
        raise ArmdError(f"no {file.name} in {name}; give a folder of save_pretrained") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArmdError(f"cannot read {file}: {error}") from None
    if not isinstance(found, dict):
        raise ArmdError(f"{file} must hold a table of fields; copy the folder again")
    return found


def copy_tokenizer(folder: Path, out: Path) -> None:
    """The tokenizer's own files where they hold its fast form, else that form made anew."""
    wanted = from_transformers(str(folder))  # raises for one that reads nothing
    if (folder / "tokenizer.json").is_file():
        for name in TOKENIZER:
            if (folder / name).is_file():
                (out / name).write_bytes((folder / name).read_bytes())
        return keep_words(out, wanted)
    from transformers import AutoTokenizer

    try:
        with no_foreign_code(folder):
            found = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # the readers raise many kinds
        reason = first_line(error)
        raise ArmdError(f"no tokenizer in {folder}: {reason}; copy its files there") from None
    with os_errors():
        found.save_pretrained(str(out))
    keep_words(out, wanted)


def keep_words(out: Path, wanted: TextTokenizer) -> None:
    """Let the copy be read as its source is. transformers chooses the class that reads a tokenizer
    by the model that lies beside it, too, and some put words and rules of their own in place."""
    if same_words(from_transformers(str(out)), wanted):
        return
    with os_errors():
        wanted.backend.save(str(out / "tokenizer.json"))
    file = out / "tokenizer_config.json"
    facts = read_json(file, str(out)) if file.is_file() else {}
    text = json.dumps(facts | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2)
    file.write_text(text + "\n", "utf-8")
    if not same_words(from_transformers(str(out)), wanted):
        raise ArmdError("transformers reads the source's tokenizer in a way that no copy keeps")


def same_words(one: TextTokenizer, two: TextTokenizer) -> bool:
    """Whether both make the same tokens of each text, and the same text of them."""
    forms = [(tokenizer_hash(t.backend), decoder_of(t.backend)) for t in (one, two)]
    return forms[0] == forms[1]


def decoder_of(backend: Any) -> Any:
    return json.loads(backend.to_str())["decoder"]
