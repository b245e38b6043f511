"""A request for completions, worked out: choices, their prompts and their plans."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..generation.outputs import TokenOutput
from ..generation.plan import DecodePlan
from .detokenizer import IncrementalText
from .errors import Refusal
from .prefill import SharedPrompt, shared_prompts
from .schema import CompletionRequest, Json
from .service import Service, any_seed

MOST_ECHOED, MOST_LETTERS = 1 << 21, 1 << 23
"""Entries of an answer for tokens that cost nothing to write, and their letters: some 30 MB."""


@dataclass
class ChoiceState:
    """One choice on its way."""

    index: int
    prompt: list[int]
    incremental: IncrementalText
    before: int
    """Characters of the prompt, for text_offset."""
    echo: IncrementalText | None = None
    """The prompt, where it is echoed: one for all texts of a prompt."""
    finish: str | None = None
    cut: str | None = None


@dataclass(frozen=True)
class Form:
    """How an answer is written down: as texts, or as messages of a chat."""

    prefix: str
    """Of the answer's id."""
    whole: str
    chunk: str
    """What the answer, and a part of it, call themselves."""
    choice: Callable[[Service, "CompletionState", ChoiceState, str, Sequence[TokenOutput]], Json]
    delta: Callable[[Service, "CompletionState", ChoiceState, str, Sequence[TokenOutput]], Json]
    """A choice, and what is new of one: the text, and the tokens of it."""
    opens: bool = False
    """A stream begins with a part that has no new text."""
    continues: bool = True
    """The new text goes on with the prompt's; a message is a text of its own."""


@dataclass(frozen=True)
class CompletionState:
    """A request, worked out: its choices and their plans."""

    form: Form
    asked: CompletionRequest
    seed: int
    eos: int | None
    texts: list[ChoiceState]
    plans: list[DecodePlan]
    deadline: float
    """time.monotonic() after which it ends with what it has."""
    shared: Sequence[SharedPrompt | None] = ()
    """For each plan the prompt that it shares with others."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def finished(self) -> bool:
        return all(text.finish is not None for text in self.texts)

    def entries(self, tokens: int) -> int:
        """Numbers and names that so many tokens have in the answer."""
        return tokens * (1 + (self.asked.logprobs or 0))


def check_asked(service: Service, asked: CompletionRequest) -> None:
    """What is wrong whatever the text's tokens are, and seen at once: before the queue is asked for
    room, because to come again would not mend it."""
    service.is_ours(asked.model)
    if (asked.best_of or 1) > (asked.n or 1):
        raise Refusal(400, "best_of above n is not offered; ask for n texts", param="best_of")
    service.tokenizer.check_length(asked.suffix or "", "suffix")
    for prompt in prompts_of(asked):
        if isinstance(prompt, str):
            service.tokenizer.check_length(prompt, "prompt")
        else:
            room_for(service, asked, len(prompt))


def completion_of(service: Service, asked: CompletionRequest, form: Form) -> CompletionState:
    """All else that can be wrong is found here, before anything is written."""
    tokenizer, count, prompts = service.tokenizer, asked.n or 1, prompts_of(asked)
    suffix = tokenizer.encode_suffix(asked.suffix or "", "suffix")
    stops = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    stops = tuple(filter(None, stops))
    eos, deadline = None if suffix else tokenizer.eos, time.monotonic() + service.limits.timeout
    state = CompletionState(form, asked, any_seed(asked.seed), eos, [], [], deadline)
    echoed = letters = 0
    for prompt in prompts:
        ids = tokenizer.encode(prompt, "prompt") if isinstance(prompt, str) else prompt
        service.check_tokens(ids, "prompt")
        shown = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
        blanks = room_for(service, asked, len(ids) + len(suffix))
        known = [True] * len(ids) + [False] * blanks + [True] * len(suffix)
        limited = asked.model_copy(update={"streams": max(1, min(asked.streams, blanks))})
        limited = limited if blanks < new_tokens(asked) else asked
        if asked.echo:
            echoed, letters = echoed + len(ids) * count, letters + len(shown) * count
        if state.entries(echoed) > MOST_ECHOED or letters > MOST_LETTERS:
            reason = "the echo would be too large an answer; ask for fewer texts (n, prompts) or"
            raise Refusal(400, f"{reason} logprobs at a time", param="echo")
        plan, echo = None, IncrementalText(tokenizer, 0) if asked.echo else None
        for _ in range(count):
            index = len(state.texts)
            after = ids if form.continues else ()
            new = IncrementalText(tokenizer, len(ids), stops, after)
            text = ChoiceState(index, ids, new, len(shown), echo)
            if blanks:
                if plan is None or asked.order == "random":
                    whole = [*ids, *[0] * blanks, *suffix]
                    plan = service.plan(whole, known, limited, (state.seed, index))
                state.plans.append(plan)
            else:
                text.finish = "length"
            state.texts.append(text)
    return replace(state, shared=shared_prompts(state.plans))


def new_tokens(asked: CompletionRequest) -> int:
    return 16 if asked.max_tokens is None else asked.max_tokens


def room_for(service: Service, asked: CompletionRequest, given: int) -> int:
    """New tokens beside so many that are given: what was asked for, or what fits. Clients send
    large numbers by default, which is no mistake of theirs; an order names every token, so there
    nothing is cut."""
    longest, wanted = service.tokenizer.max_length, new_tokens(asked)
    if wanted and given == longest:
        reason = f"the prompt has {given} tokens, all that the model takes: cut it, to leave room"
    elif given > longest or (given + wanted > longest and isinstance(asked.order, list)):
        reason = service.tokenizer.too_long(given + wanted)
    else:
        return min(wanted, longest - given)
    raise Refusal(400, reason, param="max_tokens", code="context_length_exceeded")


def prompts_of(asked: CompletionRequest) -> list[str | list[int]]:
    prompt = asked.prompt if asked.prompt is not None else ""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and not isinstance(prompt[0], int):
        return list(prompt)  # type: ignore[arg-type]
    return [prompt]  # type: ignore[list-item]
