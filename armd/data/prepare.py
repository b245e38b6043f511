"""armd prepare: a source and a tokenizer to a dataset folder, all of it or nothing."""

import difflib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from ..errors import ArmdError
from ..runtime.atomic_files import write_figures
from ..runtime.atomic_folders import new_folder
from ..runtime.progress import progress, rate
from ..runtime.standard_streams import printable
from .dataset import Dataset, open_dataset
from .formats import DOCUMENTS, Reading
from .manifest import FORMAT, write_manifest
from .parallel_encode import Encoding, encode_all
from .prepared import already_prepared, describe
from .shards import ShardWriter, WindowWriter
from .sources import WORDS, Source, find_source
from .split import WHOLE, draw, heldout_threshold
from .tokenizer import bpe_size, find_tokenizer


@dataclass(frozen=True)
class Preparation:
    """Turn text into token shards that training maps into memory."""

    source: tyro.conf.Positional[str]
    """sotu, python (its standard library), a file or folder (.txt, .jsonl, .parquet, also .gz,
    .xz, .zst), or hf:NAME or hf:NAME:CONFIG, streamed."""
    tokenizer: str
    """byte, bpe:SIZE (trained on the training documents), gpt2, bert-base-uncased, any Hugging
    Face name, or a folder with a tokenizer or the vocabulary files of GPT-2 or BERT."""
    out: Path
    """The dataset folder to make."""
    rows: int | None = None
    """One document a row, padded or cut to this many tokens; without it, documents are packed."""
    wrap: int | None = None
    """Packed documents in windows of this many tokens, each with BOS (or CLS) before and EOS (or
    SEP) after it, as MDLM and BD3-LM pack LM1B; what is left at the end is dropped."""
    documents: str = "file"
    """A document of a text file: file, line, blank (paragraphs), or a text between documents."""
    field: str = "text"
    """The JSON key or parquet column that holds the text."""
    heldout: float | None = None
    """Share of documents held out; 0.05 for sotu and python, 0.01 for others if not given."""
    seed: int = 0
    """Chooses the held-out documents."""
    hub_split: str = "train"
    """The split of an hf: source to read."""
    hub_revision: str | None = None
    """Branch, tag or commit of an hf: source; refs/convert/parquet has the data of those that need
    a script, such as lm1b."""
    replace_invalid: bool = False
    """Put U+FFFD where text is no valid UTF-8, instead of stopping."""
    bpe_bytes: int = 1 << 27
    """Train bpe:SIZE on at most this many bytes, so that its memory is bounded."""
    shard_tokens: int = 1 << 27
    """Tokens a shard file."""
    workers: int = 0
    """Processes; 0 takes all cores. The result does not depend on it."""
    json: Path | None = None
    """Write counts, seconds and rate to this file."""


LIMITS = {
    "rows": (2, 1 << 20),
    "wrap": (3, 1 << 20),
    "bpe_bytes": (1, 1 << 40),
    "shard_tokens": (1, 1 << 40),
    "workers": (0, 1024),
    "seed": (-(1 << 63), (1 << 63) - 1),
}


def prepare(preparation: Preparation) -> Dataset:
    """Make the dataset, or find it made already. Notes go to stderr."""
    check(preparation)
    reading = Reading(preparation.documents, preparation.field, preparation.replace_invalid)
    source = find_source(
        preparation.source,
        reading,
        hub_split=preparation.hub_split,
        hub_revision=preparation.hub_revision,
    )
    options = lasting_options(preparation, source)
    if already_prepared(preparation.out, options, source):
        note(f"{preparation.out} is prepared already, with these options; nothing to do")
        dataset = open_dataset(preparation.out)
        report(preparation, dataset, seconds=0.0)
        return dataset
    start = time.monotonic()
    with new_folder(preparation.out, writer="armd prepare") as staging:
        write_dataset(staging, preparation, source, options)
        if source.fingerprint() != options["fingerprint"]:
            raise ArmdError(f"{preparation.source} was changed while it was read; try again")
    dataset = open_dataset(preparation.out)
    report(preparation, dataset, seconds=time.monotonic() - start)
    return dataset


def check(preparation: Preparation) -> None:
    if preparation.tokenizer.startswith("bpe:"):
        bpe_size(preparation.tokenizer)
    if preparation.heldout is not None and not 0 <= preparation.heldout < 1:
        raise ArmdError(f"--heldout {preparation.heldout:g} is no share; give 0 to below 1")
    if preparation.rows is not None and preparation.rows < 2:
        raise ArmdError(f"--rows {preparation.rows} is too short; a row has at least 2 tokens")
    if preparation.wrap is not None and preparation.wrap < 3:
        raise ArmdError(f"--wrap {preparation.wrap} is too short; BOS and EOS leave no room")
    if preparation.wrap is not None and preparation.rows is not None:
        raise ArmdError("--rows pads one document a row and --wrap packs them; give one of the two")
    for name, (low, high) in LIMITS.items():
        value = getattr(preparation, name)
        if value is not None and not low <= value <= high:
            flag = f"--{name.replace('_', '-')}"
            raise ArmdError(f"{flag} {value} must be between {low} and {high}")
    for file in (preparation.out, preparation.json):
        if file is not None and "\0" in str(file):
            raise ArmdError("a file's name has a zero byte; name another")
    if preparation.json and preparation.json.resolve().is_relative_to(preparation.out.resolve()):
        raise ArmdError(f"--json {preparation.json} lies in --out, the dataset's; name another")
    check_documents(preparation.documents)


def check_documents(word: str) -> None:
    """Raise for words that are meant as one of ours: as a separator they would be cut out."""
    if not word:
        raise ArmdError("--documents is empty; give file, line, blank or a separating text")
    meant = {"paragraph": "blank", "document": "file", "newline": "line"}
    singular = word.lower().removesuffix("s") if word.isalpha() else ""
    near = difflib.get_close_matches(singular, (*DOCUMENTS, *meant), n=1, cutoff=0.75)
    if word not in DOCUMENTS and near:
        name = meant.get(near[0], near[0])
        raise ArmdError(
            f"--documents {word}: did you mean {name}? To cut at this very word, give it with "
            "what stands before or behind it"
        )
    if "\\n" in word or "\\t" in word or "\\r" in word:
        raise ArmdError(
            f"--documents '{word}' has a backslash and a letter, not the end of a line; give blank "
            "for empty lines, or $'\\n' in a shell"
        )


def lasting_options(preparation: Preparation, source: Source) -> dict[str, Any]:
    """What decides the dataset's bytes: equal options, equal dataset."""
    options = asdict(preparation)
    for name in ("out", "workers", "json"):
        del options[name]
    for name in ("wrap", "hub_revision"):  # datasets made before these existed stay the same
        if options[name] is None:
            del options[name]
    if options["heldout"] is None:
        options["heldout"] = 0.05 if preparation.source in WORDS else 0.01
    return options | {"fingerprint": source.fingerprint()}


def write_dataset(
    staging: Path, preparation: Preparation, source: Source, options: dict[str, Any]
) -> None:
    seed = preparation.seed
    texts = (document.text for document in source.documents())
    threshold, moved = heldout_threshold(
        texts, seed=seed, fraction=options["heldout"], source=preparation.source
    )
    if moved:
        note(moved)
    training = training_texts(source, seed, threshold, preparation.bpe_bytes)
    tokenizer = find_tokenizer(preparation.tokenizer, training, rows=preparation.rows is not None)
    tokenizer.save(staging / "tokenizer")
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    encoding = Encoding(
        tokenizer.backend.to_str(),
        dtype,
        tokenizer.eos,
        tokenizer.pad,
        preparation.rows,
        seed,
        threshold,
    )
    splits = write_splits(staging, preparation, source, encoding, tokenizer.bos)
    manifest = {
        "format": FORMAT,
        "options": options,
        "tokenizer": describe(tokenizer, preparation.tokenizer),
        "dtype": dtype,
        "rows": preparation.rows or preparation.wrap,
        "split_rule": f"held out: blake2b(document, key=seed) < {threshold} of {WHOLE}",
        "splits": splits,
    }
    write_manifest(staging, manifest)


def training_texts(source: Source, seed: int, threshold: int, limit: int) -> Iterator[str]:
    """The training documents, up to `limit` bytes."""
    read = 0
    for document in source.documents():
        data = document.text.encode()
        if draw(seed, data) < threshold:
            continue
        read += len(data)
        if read > limit:
            yield data[: limit - read].decode(errors="ignore")  # no half letter
            return
        yield document.text


def write_splits(
    staging: Path, preparation: Preparation, source: Source, encoding: Encoding, bos: int
) -> dict[str, dict[str, Any]]:
    """Encode every document and write it; counts and shards of each split."""
    dtype = np.dtype(encoding.dtype).newbyteorder("<")
    writers: dict[str, ShardWriter | WindowWriter] = {
        name: ShardWriter(staging, name, dtype, preparation.shard_tokens)
        for name in ("train", "heldout")
    }
    if preparation.wrap is not None:
        around = preparation.wrap, bos, encoding.eos
        writers = {name: WindowWriter(writer, *around) for name, writer in writers.items()}  # type: ignore[arg-type]
    counts = {name: dict.fromkeys(("documents", "bytes", "scored", "cut"), 0) for name in writers}
    workers = preparation.workers or cores()
    encoded = encode_all(source.documents(), encoding, workers=workers)
    start = time.monotonic()
    with progress("preparing", source.total, lines=True) as show:
        for position, parts in encoded:
            for name, part in parts.items():
                for tokens in part.tokens:
                    writers[name].write(tokens)
                for key in counts[name]:
                    counts[name][key] += getattr(part, key)
            done = sum(count["scored"] for count in counts.values())
            show(position, f"{done:,} tokens, {rate(done, time.monotonic() - start)}")
    for writer in writers.values():
        writer.close()
    return {
        name: counts[name]
        | {"tokens": sum(shard["tokens"] for shard in writer.shards), "shards": writer.shards}
        for name, writer in writers.items()
    }


def cores() -> int:
    """Cores this process may use, where the system tells."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def report(preparation: Preparation, dataset: Dataset, *, seconds: float) -> None:
    splits = dataset.manifest["splits"]
    workers = preparation.workers or cores()
    tokens = sum(split["scored"] for split in splits.values())
    for name, split in splits.items():
        cut = f", {split['cut']:,} cut to {preparation.rows}" if split["cut"] else ""
        print(f"{name}: {split['documents']:,} documents{cut}, {split['scored']:,} tokens")
    if seconds:
        print(f"{dataset.folder}: {seconds:.1f} s, {rate(tokens, seconds)}, workers: {workers}")
    if preparation.json is not None:
        keys = ("documents", "tokens", "scored", "bytes", "cut")
        figures = {name: {k: split[k] for k in keys} for name, split in splits.items()}
        timing = {"seconds": seconds, "workers": workers}
        timing["tokens_per_second"] = tokens / seconds if seconds else 0.0
        write_figures(preparation.json, figures | timing)


def note(text: str) -> None:
    print(f"armd: {printable(text)}", file=sys.stderr)
