"""Which model and tokenizer does the user's word name?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..baselines import knows_orders, model_class
from ..data.sources import digest
from ..errors import ArmdError, first_line
from ..model.strict_model import check_weight_files
from ..pretrained import (
    OURS,
    QUANTIZED,
    TOKENIZER_FILES,
    check_saved,
    checked_sums,
    in_memory,
    is_named,
    is_quantized,
    load_packed,
    model_folder,
    read_config,
    saved_kind,
)
from ..runtime.atomic_files import hash_file, read_text
from ..runtime.atomic_folders import unexchanged
from ..runtime.device import find_device
from ..runtime.foreign_code import no_foreign_code
from ..runtime.memory import check_memory
from ..runtime.threads import use_few_threads
from ..runtime.weight_files import INDEX, weight_files

if TYPE_CHECKING:
    import torch

    from ..data.tokenizer import TextTokenizer
    from .scorer import Scorer

ROUNDED = ("int8", "q8", "q4")
"""Precisions of weights that are packed."""
PRECISIONS = {"float32": "float32", "bfloat16": "bfloat16"} | dict.fromkeys(ROUNDED, "float32")
"""And the numbers that they are loaded in."""


@dataclass(frozen=True)
class Loaded:
    """A model ready to be asked, and what to write beside its figures."""

    name: str
    kind: str
    """armd (a model that knows orders), armd-baseline (one that only bounds its likelihood), or the
    model_type of a causal LM."""
    model: Any
    tokenizer: TextTokenizer
    precision: str
    """Of its weights, as they are: those of a quantized folder are rounded."""
    fingerprint: str
    """Changes when its weights or its config.json do."""
    training: str = ""
    """How it was trained, where a run says so."""

    @property
    def bos(self) -> int:
        return self.tokenizer.bos

    @property
    def eos(self) -> int:
        return self.tokenizer.eos

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer.encode_texts(texts)

    @property
    def parameters(self) -> int:
        from ..native.linear import count_weights

        return count_weights(self.model)

    @property
    def config(self) -> str:
        """Its shape in words, and how it was trained."""
        config = self.model.config
        if self.kind in OURS:
            layers, width = f"{config.n_layers} layers", config.d_model
            if self.kind == "armd" and config.query != "shift":
                layers += f", {config.n_two_stream} of two streams"
        else:
            layers = f"{getattr(config, 'num_hidden_layers', '?')} layers"
            width = getattr(config, "hidden_size", "?")
        kind = f"{config.model} ({self.kind})" if self.kind == "armd-baseline" else self.kind
        words = f"{kind}, {layers}, width {width}, {self.parameters:,} weights"
        return words + self.training

    def scorer(self) -> Scorer:
        from .scorer import ArmdScorer, BaselineScorer, CausalScorer

        if self.kind == "armd":
            return ArmdScorer(self.model)
        if self.kind == "armd-baseline":
            return BaselineScorer(self.model)
        return CausalScorer(self.model, self.bos)


def load(
    name: str,
    *,
    tokenizer: str | None = None,
    device: str | None = None,
    precision: str = "float32",
) -> Loaded:
    """Our own model, a training run, or a causal LM of Hugging Face, with its tokenizer."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if precision not in PRECISIONS:
        raise ArmdError(f"no precision '{precision}'; use {', '.join(PRECISIONS)}")
    # a path whose parent is here is a folder, mistyped perhaps, and no name of the hub
    beside = Path(name).parent.name != "" and Path(name).parent.is_dir()
    here = Path(name).exists() or is_named(name) or beside
    folder = model_folder(name) if here else None  # else a name of the hub

    def read() -> Loaded:
        return _read(name, folder, tokenizer=tokenizer, device=device, precision=precision)

    return read() if folder is None else unexchanged(folder, read)


def _read(
    name: str, folder: Path | None, *, tokenizer: str | None, device: str | None, precision: str
) -> Loaded:
    """What a folder, or else a name of the hub, holds, and which weights they are."""
    dtype = PRECISIONS[precision]
    kind, model_name = saved_kind(folder) if folder else ("hub", "")
    if folder is not None and kind in OURS:
        check_saved(folder)
        quantized = is_quantized(folder)
        model: Any = (
            load_packed(folder, model_name, find_device(device))
            if quantized
            else in_memory(model_class(model_name).from_pretrained(folder, dtype=dtype))
        )
        if quantized and precision != "float32":
            raise ArmdError(f"{folder} is quantized already; leave out --precision")
        if quantized:
            precision = model.weights + "".join(f", {kind} q8" for kind in model.kept)
        if precision in ROUNDED:
            if not knows_orders(model_name):
                raise ArmdError(f"{precision} weights are not for {model_name}; use float32")
            from ..native.packed import pack

            model = pack(model, precision)
    elif precision in ROUNDED:
        raise ArmdError(
            f"{precision} weights are for our own models; use float32 or bfloat16 for this one"
        )
    else:
        model = causal_lm(str(folder or name), dtype)
    found = model_tokenizer(str(folder or name), tokenizer)
    use_few_threads(model)
    files = folder or cached_folder(name)
    loaded = Loaded(
        name,
        "armd" if kind in OURS and knows_orders(model_name) else model.config.model_type,
        model.eval().to(find_device(device)),
        found,
        precision,
        fingerprint(files) if files else "hub:unknown",
        trained(Path(name), folder),
    )
    return fitting(loaded)


def causal_lm(name: str, dtype: torch.dtype | str) -> Any:
    from transformers import AutoModelForCausalLM

    from ..data.hub import require_hub
    from .causal_check import REPORTED, checked

    options = {"dtype": dtype, "use_safetensors": True, "trust_remote_code": False, **REPORTED}
    found: Any = None
    if Path(name).is_dir():
        check_weight_files(Path(name))
        if is_quantized(Path(name)):
            raise ArmdError(f"{name} is quantized; use the model that it was made of")
        check_claims(Path(name))
    if not Path(name).exists():
        try:
            with no_foreign_code(name):
                here = {"local_files_only": True}
                found = AutoModelForCausalLM.from_pretrained(
                    name, **here, adapter_kwargs=dict(here), **options
                )
        except Exception:  # not in the cache: ask the hub, if it is there
            require_hub(f"model '{name}'", "give a folder made by save_pretrained")
    try:
        with no_foreign_code(name):
            found = found or AutoModelForCausalLM.from_pretrained(name, **options)
    except Exception as error:  # transformers and its hub client raise many kinds
        reason = first_line(error)
        raise ArmdError(f"cannot load {name} as a causal language model: {reason}") from None
    return in_memory(checked(name, found))


def check_claims(folder: Path) -> None:
    """Raise, before anything is allocated, if config.json names more layers than there are tensors,
    or these are more than memory holds."""
    from safetensors import SafetensorError, safe_open

    shapes = []
    try:
        for file in weight_files(folder):
            with safe_open(file, "pt") as opened:
                shapes += [opened.get_slice(key).get_shape() for key in opened.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ArmdError(f"{folder} is damaged ({error}); copy it again") from None
    tables: list[Any] = [read_config(folder)] if shapes else []
    while tables:
        table = tables.pop()
        tables += [value for value in table.values() if isinstance(value, dict)]
        for key, value in table.items():
            counts = "layer" in key and not key.startswith("max_")  # of Qwen: a bound, no count
            if counts and type(value) is int and value > len(shapes):
                raise ArmdError(
                    f"{folder} does not fit its own config.json: {key} {value} is more than its "
                    f"{len(shapes)} tensors; copy it again"
                )
    check_memory(4 * sum(map(prod, shapes)), f"the model in {folder}", "use a machine with more")


def model_tokenizer(place: str, named: str | None) -> TextTokenizer:
    from ..data.tokenizer import find_tokenizer

    bare = Path(place).is_dir() and not any((Path(place) / f).exists() for f in TOKENIZER_FILES)
    if named is None and bare:
        raise ArmdError(f"no tokenizer in {place}; name its tokenizer with --tokenizer")
    if (named or "").startswith("bpe:"):
        raise ArmdError("a tokenizer trained here is no model's own; give its folder")
    found = find_tokenizer(named or place, (), rows=False)
    if named is not None and Path(place).is_dir() and not bare:
        own = find_tokenizer(place, (), rows=False)
        if found.backend.get_vocab() != own.backend.get_vocab():
            raise ArmdError(
                f"{place} has a tokenizer of its own, and {named} is another one, whose tokens the "
                "model does not know; leave out --tokenizer"
            )
    return found


def fitting(loaded: Loaded) -> Loaded:
    ours, theirs = loaded.tokenizer.vocab_size, loaded.scorer().vocab_size
    if (longest := loaded.scorer().max_length) < 1:
        raise ArmdError(f"{loaded.name} takes {longest} tokens by its config.json; mend that")
    if ours > theirs:
        raise ArmdError(
            f"the tokenizer writes {ours} tokens, but {loaded.name} knows {theirs}; "
            "name the model's own with --tokenizer"
        )
    return loaded


def trained(run: Path, export: Path | None) -> str:
    """What a run's own config.json says of its training, and how far this export of it is."""
    from ..train.export import told_step

    try:
        said = json.loads(read_text(run / "config.json"))
        plan = said["curriculum"]
        steps = f"{plan['steps']:,} steps up to rho {plan['rho']}, {plan['sbp_steps']:,} strided"
        step = None if export is None else told_step(export)
        total = plan["steps"] + plan["sbp_steps"]
        known = "" if step is None else f", at step {step:,} of {total:,}"
        return f"; preset {said['preset']}, {steps}, seed {said['seed']}{known}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def fingerprint(folder: Path) -> str:
    """Of the content of all files that say what a model computes."""
    more = (folder / name for name in ("config.json", INDEX, QUANTIZED))
    files = [*(file for file in more if file.is_file()), *weight_files(folder)]
    ours = saved_kind(folder)[0] in OURS
    sums = checked_sums(folder, files) if ours else map(hash_file, files)
    lines = (f"{file.name} {found}" for file, found in zip(files, sums, strict=True))
    return f"content:{digest(lines)}"


def cached_folder(name: str) -> Path | None:
    """Where the hub's client keeps the model of that name, once it was loaded."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None
