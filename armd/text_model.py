"""`armd.load`: a model and its tokenizer, text in, text out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ArmdError

if TYPE_CHECKING:
    from .data.chat_template import ChatTemplate
    from .data.tokenizer import TextTokenizer
    from .model.modeling_armd import ArmdLM
    from .model.order import Order


OPTIONS = {
    "left_to_right": (),
    "strided": ("streams",),
    "random": ("generator",),
    "shuffled": ("rho", "how", "generator"),
    "masking": ("steps", "schedule", "generator"),
    "infill": ("known", "streams"),
}
"""What each order takes; the first, but for a generator, it needs."""


@dataclass(frozen=True)
class Score:
    """How probable a text is under an order."""

    tokens: list[int]
    logp: list[float]
    """Of each token, in nats, in natural order."""

    @property
    def total(self) -> float:
        return sum(self.logp)

    @property
    def perplexity(self) -> float:
        return exp(min(-self.total / len(self.logp), 700))


@dataclass(frozen=True)
class TextModel:
    """A model that writes, fills blanks and scores."""

    folder: Path
    model: ArmdLM
    """As it was saved; it may be trained on."""
    tokenizer: TextTokenizer
    weights: str = "fp32"
    _packed: dict[str, Any] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    @property
    def fast(self) -> ArmdLM:
        """The model packed for decoding, where that is to be had, and checked against it; packed
        anew if its weights, its parts or its config were changed."""
        from .checked_pack import made_of, pack_checked

        with self._lock:
            now = made_of(self.model)
            if self._packed.get("made_of") != now:
                self._packed.update(fast=pack_checked(self.model, self.weights), made_of=now)
            return self._packed["fast"]

    @cached_property
    def chat_template(self) -> ChatTemplate:
        from .data.chat_template import ChatTemplate

        return ChatTemplate(self.folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> TextModel:
        """Weights of its own, packed when they are first needed, and a lock of its own."""
        model, tokenizer = deepcopy(self.model, memo), deepcopy(self.tokenizer, memo)
        fresh = {"_packed": {}, "_lock": threading.Lock()}
        return replace(self, model=model, tokenizer=tokenizer, **fresh)

    def encode(self, text: str) -> list[int]:
        from .data.tokenizer import no_panic

        check_text(text)
        with no_panic():
            return self.tokenizer.backend.encode(text, add_special_tokens=False).ids if text else []

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.backend.decode(list(tokens), skip_special_tokens=False)

    def write(
        self,
        prompt: str = "",
        *,
        length: int | None = None,
        streams: int = 1,
        seed: int | None = None,
        chat: bool = False,
        **sampling: Any,
    ) -> str:
        """The prompt and its continuation, `length` tokens together (256, or the most the model
        takes), in `streams` strided runs. With `chat` the prompt is a user's message, and what is
        returned is the answer. `sampling`: temperature, top_k, top_p, min_p, repetition_penalty,
        order."""
        from .generation.api import generate

        if chat:
            prompt = self.chat_template.text([{"role": "user", "content": prompt}])
        given, eos = self.encode(prompt), self.tokenizer.eos
        most = self.model.config.max_length
        length = min(256, most) if length is None else length
        if length > most:
            raise ArmdError(f"length {length} passes the model's {most} tokens; ask for less")
        options = {"prompt": [given], "generator": _generator(seed), "eos": eos, **sampling}
        made = generate(self.fast, length=length, streams=streams, **options)[0].tolist()
        new = made[len(given) :]
        new = new[: new.index(eos)] if eos in new else new
        return self.decode(new if chat else [*given, *new])

    def fill(
        self,
        template: str,
        *,
        lengths: int | Sequence[int] | None = None,
        streams: int = 1,
        seed: int | None = None,
        **sampling: Any,
    ) -> str:
        """The template with its blanks, two or more underscores each, filled. `lengths`: tokens of
        the blanks, one number for all or one for each; without it 1 to 8, drawn. `sampling`:
        temperature and so on, and `candidates`: fills to draw for each blank, to keep one."""
        import torch

        from .data.template import fill_in
        from .infilling import infill

        generator = _generator(seed)
        several = [lengths] if isinstance(lengths, int) else lengths
        tokens, known = fill_in(template, self.encode, lengths=several, generator=generator)
        options = {"streams": streams, "generator": generator, **sampling}
        made = infill(self.fast, torch.tensor([tokens]), torch.tensor(known), **options)
        return self.decode(made[0].tolist())

    def score(self, text: str, *, order: str | Order = "left_to_right", **options: Any) -> Score:
        """log p of a text under an order, exactly, in one pass. `order` and `options` as in
        armd.order.named: strided (streams), random, shuffled (rho), masking (steps); or an Order of
        as many tokens as the text has."""
        import torch

        from .model.eval_mode import without_dropout
        from .model.likelihood import log_likelihood
        from .model.order import Order, named, spelled

        tokens = self.encode(text)
        if not tokens:
            raise ArmdError("there is nothing to score; give at least one token of text")
        if isinstance(order, Order) and options:
            raise ArmdError(f"an Order says all of itself; leave out {', '.join(options)}")
        if not isinstance(order, Order):
            check_options(spelled(str(order)), options)
        chosen = order if isinstance(order, Order) else named(str(order), len(tokens), **options)
        chosen = chosen.rows(1)
        with torch.no_grad(), without_dropout(self.model):
            ids = torch.tensor([tokens], device=self.model.device)
            logp = log_likelihood(self.model, ids, chosen)[0].double().cpu()
        return Score(tokens, logp[chosen.inverse()[0].cpu()].tolist())


def check_options(order: str, options: dict[str, Any]) -> None:
    """Raise where an order lacks what makes it more than left to right, or takes no such option."""
    if order not in OPTIONS:
        return  # there is no such order, which is said where it is made
    takes = OPTIONS[order]
    for name in options:
        if name not in takes:
            other = next((f", or ask for '{o}'" for o, t in OPTIONS.items() if name in t), "")
            raise ArmdError(f"order '{order}' takes no {name}; leave it out{other}")
    needed = next(iter(takes), "generator")
    if needed != "generator" and needed not in options:
        example = {"known": "known=tensor"}.get(needed, f"{needed}=2")
        call = f'score(text, order="{order}", {example})'
        raise ArmdError(f"order '{order}' needs {needed}; give {call}")


def check_text(text: str) -> None:
    """Raise for what no tokenizer reads."""
    if not isinstance(text, str):
        raise ArmdError(f"a text is a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArmdError(
            f"the text has half a surrogate pair at character {error.start}; give valid Unicode"
        ) from None


def load(path: Path | str, *, weights: str = "fp32", device: str = "cpu") -> TextModel:
    """The model of a training run, of a save_pretrained folder, or of a word such as "smollm2",
    with its tokenizer. `weights`: fp32, bf16, int8, q8 or q4 (decoding reads less), or plain."""
    from .model.modeling_armd import ArmdLM
    from .pretrained import in_memory, load_model, load_tokenizer, model_folder

    model = in_memory(load_model(path, device=device))
    if not isinstance(model, ArmdLM):
        raise ArmdError(f"{path} is a baseline that writes whole texts; use armd generate {path}")
    tokenizer = load_tokenizer(path, vocab_size=model.config.vocab_size)
    made = TextModel(model_folder(path), model, tokenizer, weights)
    _ = made.fast  # packed now: the first text need not wait, nor fail
    return made


def _generator(seed: int | None) -> Any:
    import torch

    return None if seed is None else torch.Generator().manual_seed(seed)
