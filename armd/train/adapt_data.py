"""What an adaptation learns from: a prepared dataset, text, or samples that a model wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from ..data.dataset import open_dataset
from ..data.manifest import FORMAT, MANIFEST, write_manifest
from ..data.prepare import Preparation, prepare
from ..data.prepared import describe, made_with
from ..data.shards import ShardWriter
from ..data.sources import WORDS
from ..data.tokenizer import TextTokenizer, find_tokenizer
from ..errors import ArmdError
from ..runtime.atomic_files import hash_file
from ..runtime.atomic_folders import new_folder
from .adapt_base import began_with

HELDOUT = 20
"""Of samples, one in so many is held out; of fewer, the last."""


def dataset_for(data: str, base: Path, out: Path) -> Path:
    """The dataset folder to learn from, made beside the run's folder where `data` is none; its
    tokens are those of the model that the run began with."""
    path, model = Path(data), began_with(out, base)
    own = find_tokenizer(str(model), (), rows=False)
    if (path / MANIFEST).is_file():
        open_dataset(path).check_tokenizer(own.backend)
        return path
    run = out if out.name.strip(".") else Path(os.path.abspath(out))  # `.` and `..` have no name
    folder = made_dataset(path, data, base, run.with_name(f"{run.name}-data"))
    if not made_with(open_dataset(folder), own):
        raise ArmdError(
            f"{folder} was made with another tokenizer than {model} has now; remove it or choose "
            "another --out"
        )
    return folder


def made_dataset(path: Path, data: str, base: Path, folder: Path) -> Path:
    """The dataset of `data` in `folder`, which may be there from an earlier call."""
    if data not in WORDS and not path.exists() and not data.startswith("hf:"):
        raise ArmdError(
            f"no data {data}; give text files, a folder that armd prepare made, or samples that "
            "armd generate --out wrote"
        )
    if path.is_file() and path.suffix == ".jsonl" and has_ids(path):
        return from_samples(path, base, folder)
    # of one file, some paragraphs can be held out; of many, whole files
    cut = "blank" if path.is_file() and ".txt" in path.suffixes else "file"
    try:
        prepare(Preparation(data, tokenizer=str(base), out=folder, documents=cut, workers=1))
    except ArmdError as error:
        if " --" not in str(error):
            raise
        raise ArmdError(
            f"{error} (options of armd prepare: make a dataset with it, with --tokenizer {base}, "
            "and give its folder as --data)"
        ) from None
    return folder


def has_ids(file: Path) -> bool:
    with file.open("rb") as lines:
        first = next(lines, b"")
    try:
        return "ids" in json.loads(first)
    except (ValueError, TypeError):
        return False


def sample_ids(file: Path, tokenizer: TextTokenizer) -> Iterator[list[int]]:
    """The tokens of each sample; where its text stands beside them, they must be its."""
    size, decode = tokenizer.vocab_size, tokenizer.backend.decode
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                ids = record["ids"]
                wrong = not ids or not all(type(one) is int and 0 <= one < size for one in ids)
            except (ValueError, KeyError, TypeError):
                raise ArmdError(f"{file} line {number} is no sample with token ids") from None
            if wrong:
                raise ArmdError(
                    f"{file} line {number} has tokens outside the vocabulary of {size}; "
                    "give samples that this model wrote"
                )
            text = record.get("text")
            if isinstance(text, str) and text not in decode(ids, skip_special_tokens=False):
                raise ArmdError(
                    f"{file} line {number} has tokens that are not those of its text with this "
                    "model's tokenizer; give samples that this model wrote"
                )
            yield ids


def held_out_every(file: Path, tokenizer: TextTokenizer) -> int:
    """One sample in so many is held out, so that some are on each side."""
    first = len(list(islice(sample_ids(file, tokenizer), HELDOUT)))
    if first < 2:
        raise ArmdError(
            f"{file} has one sample; one is learnt from and another held out: give two or more"
        )
    return first


def from_samples(file: Path, base: Path, folder: Path) -> Path:
    """A dataset of the tokens as they were drawn: text would be cut into others. Where it is there
    already, its tokenizer is not asked for."""
    digest = hash_file(file)
    if (folder / MANIFEST).is_file():
        there = open_dataset(folder)
        if there.manifest.get("options", {}).get("samples") != digest:
            raise ArmdError(f"{folder} holds other samples; remove it or choose another --out")
        return folder
    tokenizer, dtype = find_tokenizer(str(base), (), rows=False), np.dtype("<u4")
    every = held_out_every(file, tokenizer)
    with new_folder(folder) as staging:
        tokenizer.save(staging / "tokenizer")
        writers = {n: ShardWriter(staging, n, dtype, 1 << 27) for n in ("train", "heldout")}
        counts = {name: {"documents": 0, "tokens": 0} for name in writers}
        for index, ids in enumerate(sample_ids(file, tokenizer)):
            name = "heldout" if index % every == every - 1 else "train"
            writers[name].write(np.array(ids, dtype).tobytes())
            counts[name]["documents"] += 1
            counts[name]["tokens"] += len(ids)
        splits = {}
        for name, writer in writers.items():
            writer.close()
            more = {"bytes": 0, "scored": counts[name]["tokens"], "cut": 0}
            splits[name] = {**counts[name], **more, "shards": writer.shards}
        manifest = {
            "format": FORMAT,
            "options": {"samples": digest},
            "tokenizer": describe(tokenizer, str(base)),
            "dtype": "uint32",
            "rows": None,
            "split_rule": f"held out: one sample in {every}",
            "splits": splits,
        }
        write_manifest(staging, manifest)
        if hash_file(file) != digest:
            raise ArmdError(f"{file} was changed while it was read; try again")
    return folder
