"""Is a dataset there already, of the same text, by the same tokenizer and with the same options?"""

import os
from pathlib import Path
from typing import Any

from ..errors import ArmdError
from .dataset import Dataset, open_dataset
from .manifest import MANIFEST
from .sources import Source
from .tokenizer import TextTokenizer, find_tokenizer, from_transformers, tokenizer_hash, with_ends


def already_prepared(out: Path, options: dict[str, Any], source: Source) -> bool:
    """False where nothing is there; what is there and is another dataset is refused."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / MANIFEST).exists():
        raise ArmdError(f"{out} exists and is no dataset; choose another --out")
    dataset = open_dataset(out)
    there = dataset.manifest.get("options")
    if there is None:
        raise ArmdError(f"{out / MANIFEST} does not say how it was made; choose another --out")
    told, tokenizer = there.get("fingerprint"), options["tokenizer"]
    if told == options["fingerprint"]:  # the same content, wherever it lies
        options = options | {"source": there.get("source")}
    elif told is not None and told == source.names_fingerprint():
        options = options | {"fingerprint": told}
    other = [name for name in {**options, **there} if there.get(name) != options.get(name)]
    if other in ([], ["tokenizer"]):
        rows = options["rows"] is not None
        if not other:
            check_named(dataset, tokenizer, rows=rows)
            return True
        found = named_now(tokenizer, rows=rows)
        if found is not None and made_with(dataset, found):
            return True
    name = other[0]
    before, now = there.get(name), options.get(name)
    what = f"{name} {before!r}, now {now!r}" if name != "fingerprint" else "other source files"
    raise ArmdError(f"{out} was prepared with {what}; choose another --out or remove it")


def check_named(dataset: Dataset, name: str, *, rows: bool) -> None:
    """Raise if a name has come to mean another tokenizer than the dataset was made with."""
    found = named_now(name, rows=rows)
    if found is not None and not made_with(dataset, found):
        raise ArmdError(
            f"{dataset.folder} was prepared with another tokenizer than {name} is now; choose "
            "another --out or remove it"
        )


def named_now(name: str, *, rows: bool) -> TextTokenizer | None:
    """The tokenizer that a name means now; None for one that follows from the options and the
    text, and for one of the hub that is not in its cache."""
    if name == "byte" or name.startswith("bpe:"):
        return None
    if os.path.isdir(name):
        return find_tokenizer(name, (), rows=rows)
    try:
        return with_ends(from_transformers(name, local_files_only=True), rows=rows)
    except ArmdError:
        return None


def made_with(dataset: Dataset, tokenizer: TextTokenizer) -> bool:
    """Whether this is the tokenizer of a dataset, as far as its manifest says: those of earlier
    versions do not name the BOS."""
    there = dataset.manifest["tokenizer"]
    return there | describe(tokenizer, there["name"]) == {"bos": tokenizer.bos} | there


def describe(tokenizer: TextTokenizer, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "hash": tokenizer_hash(tokenizer.backend),
        "vocab_size": tokenizer.vocab_size,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "pad": tokenizer.pad,
    }
