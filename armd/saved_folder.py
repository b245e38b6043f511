"""What a saved model has beside its weights: code, config, generation settings, a pad token, and a
card that says what it is and how to use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .baselines import MODELS, name_of
from .data.source_ends import leave_out_ends
from .errors import ArmdError

if TYPE_CHECKING:
    from .model.configuration_armd import ArmdConfig

CARD = "README.md"
INPUTS = ["input_ids", "attention_mask"]
"""What our model takes of what a tokenizer makes."""


def finish_folder(
    folder: Path,
    config: ArmdConfig,
    *,
    weights: int,
    about: Mapping[str, object] | None = None,
    losses: Mapping[str, float] | None = None,
    losses_step: int | None = None,
) -> None:
    """Add all that to a folder of weights and, if there is one, a tokenizer. `about`: facts for the
    card; `losses`: nats a token on held-out text, by order, at step `losses_step`."""
    config.architectures = [MODELS[name_of(config)][1]]
    leave_out_ends(folder)
    config.eos_token_id, config.pad_token_id = add_pad(folder)
    add_code(config, folder)
    config.save_pretrained(str(folder))
    ends = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    settings = {"do_sample": False, **ends}
    (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    measured = {"losses": losses or {}, "losses_step": losses_step}
    text = card(config, weights=weights, about=about or {}, **measured)
    (folder / CARD).write_text(text, "utf-8")


def add_code(config: ArmdConfig, folder: Path) -> None:
    """As save_pretrained does: our own model's code goes with it, so that it loads without armd."""
    import torch
    from transformers.dynamic_module_utils import custom_object_save

    from .model.modeling_armd import AUTO_MAP, ArmdLM

    if config.architectures != [ArmdLM.__name__]:
        return
    with torch.device("meta"):
        shell = ArmdLM(config)
    config.auto_map = AUTO_MAP.copy()  # type: ignore[attr-defined]
    custom_object_save(shell, folder, config=config)  # type: ignore[arg-type]


def add_pad(folder: Path) -> tuple[int | None, int | None]:
    """EOS and pad of the folder's tokenizer. One without a pad pads with EOS, as GPT-2's users do:
    an attention_mask keeps the two apart."""
    file, vocabulary = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not file.is_file() or not vocabulary.is_file():
        return None, None
    from tokenizers import Tokenizer

    try:
        settings = dict(json.loads(file.read_text("utf-8")))
        backend = Tokenizer.from_file(str(vocabulary))
    except Exception as error:  # tokenizers raises bare Exception
        raise ArmdError(f"the tokenizer in {folder} is damaged ({error}); copy it again") from None
    eos = _content(settings.get("eos_token"))
    settings["pad_token"] = _content(settings.get("pad_token")) or eos
    if settings["pad_token"] is None:
        return None, None
    settings["model_input_names"] = INPUTS
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return tuple(t and backend.token_to_id(t) for t in (eos, settings["pad_token"]))  # type: ignore


def _content(token: Any) -> str | None:
    """A special token may stand there as a text or as a table."""
    return token.get("content") if isinstance(token, dict) else token


def card(
    config: ArmdConfig,
    *,
    weights: int,
    about: Mapping[str, object],
    losses: Mapping[str, float],
    losses_step: int | None,
) -> str:
    """The text of README.md."""
    sizes = {
        "weights": f"{weights:,}",
        "layers": f"{config.n_layers}, of which {config.n_two_stream} with two streams",
        "width": config.d_model,
        "heads": config.n_heads,
        "vocabulary": f"{config.vocab_size:,}",
        "longest text": f"{config.max_length:,} tokens",
        "query": config.query,
        **about,
    }
    parts = [HEAD.format(name=name_of(config)), _table("", "", sizes)]
    if losses:
        rows = {order: f"{nats:.3f} | {exp(min(nats, 700)):.2f}" for order, nats in losses.items()}
        when = "" if losses_step is None else f" at step {losses_step:,}"
        heading = f"## Held-out text{when}, by order"
        parts += [heading, _table("order", "nats a token | perplexity", rows)]
    ours = config.architectures == ["ArmdLM"]
    streams = "" if config.query == "shift" else ", streams=4"
    parts.append(USE.format(streams=streams) if ours else BASELINE)
    return "\n\n".join(parts) + "\n"


def _table(first: str, second: str, rows: Mapping[str, object]) -> str:
    lines = [f"| {first} | {second} |", "| --- |" + " --- |" * (1 + second.count("|"))]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())])


HEAD = """---
library_name: transformers
tags: [armd, any-order, parallel-decoding]
---

# A language model ({name})

Made by armd, an implementation of Auto-Regressive Masked Diffusion Models (Karami and Ghodsi,
AISTATS 2026). It has learnt its training text and nothing else: what it writes may be false or
offensive."""

USE = """## Use

With armd: `armd.load(FOLDER).write("Once"{streams})`. With transformers alone, from the code in
this folder:

```python
from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained(FOLDER, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
ids = tokenizer("Once", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=32{streams}, do_sample=True)[0]))
```

`AutoModelForCausalLM` gives the same model left to right, with logits for the next token. The
`fill-mask` pipeline does not fit: there is no mask token. `model.infill(ids, known)` fills
blanks."""

BASELINE = """## Use

`armd generate FOLDER`, `armd eval ppl FOLDER`: this model needs armd."""
