"""Requests: which texts are to be written? Prompts and templates as decode plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.template import blank_lengths, fill_in
from ..errors import ArmdError
from ..runtime.atomic_files import read_named
from ..runtime.numbers import whole_number
from ..runtime.seeds import seeded

MOST_STEPS = 1_000_000
"""Of a masking process."""
MOST_BYTES = 1 << 28
"""Of prompts."""

if TYPE_CHECKING:
    from ..generation.plan import DecodePlan
    from ..model.order import Order


@dataclass(frozen=True)
class Request:
    """One text to be completed."""

    index: int
    """Its number, from which, with the seed, all its draws come."""
    prompt: str
    """What the user gave: a prompt or a template."""
    tokens: list[int]
    known: list[bool]
    whole: bool = False
    """All of it is written, past any EOS."""


def read_prompts(file: Path) -> list[str]:
    """Prompts from a .txt file or a pipe, one a line, or from .jsonl objects with a prompt or a
    text."""
    if file.suffix not in (".txt", ".jsonl") and not file.is_fifo():
        raise ArmdError(f"prompts {file} must be .txt, one prompt a line, or .jsonl")
    try:
        text = read_named(file, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArmdError(
            f"{file} is no UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ArmdError(f"cannot read {file}: {error.strerror}; name a file of prompts") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ArmdError(f"{file} holds no prompts; write one a line")
    if file.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [_json_prompt(file, number, line) for number, line in numbered]


def _json_prompt(file: Path, number: int, line: str) -> str:
    try:
        record = json.loads(line)
        found = record["prompt"] if "prompt" in record else record["text"]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, str):
        raise ArmdError(f"{file} line {number} is no JSON object with a prompt") from None
    if any("\ud800" <= letter <= "\udfff" for letter in found):
        raise ArmdError(f"{file} line {number} holds half a surrogate pair; write whole letters")
    return found


def from_prompts(
    prompts: Sequence[str],
    encode: Callable[[str], list[int]],
    *,
    length: int,
    count: int,
    max_length: int,
) -> list[Request]:
    """Each prompt `count` times, to be continued up to `length` tokens."""
    requests = []
    for number, prompt in enumerate(prompts):
        given = encode(prompt)
        if len(given) >= max_length:
            raise ArmdError(
                f"prompt {number + 1} has {len(given)} tokens, and the model takes {max_length} "
                "with what it writes; cut the prompt"
            )
        if not len(given) < length:
            raise ArmdError(
                f"--length {length} leaves no room after a prompt of {len(given)} tokens; raise "
                "--length or cut the prompt"
            )
        blanks = length - len(given)
        tokens, known = given + [0] * blanks, [True] * len(given) + [False] * blanks
        start = number * count
        requests += [Request(start + i, prompt, tokens, known) for i in range(count)]
    return requests


def from_template(
    template: str, encode: Callable[[str], list[int]], *, lengths: str, count: int, seed: int
) -> list[Request]:
    """A template `count` times; blanks without a given length draw one for each text."""
    given = blank_lengths(lengths)
    requests = []
    for index in range(count):
        generator = seeded(seed, index, "blanks")
        tokens, known = fill_in(template, encode, lengths=given, generator=generator)
        requests.append(Request(index, template, tokens, known, whole=True))
    return requests


def batches(requests: Sequence[Request], most: int) -> Iterator[list[Request]]:
    """Neighbours of equal length together, at most so many."""
    batch: list[Request] = []
    for request in requests:
        if batch and (len(batch) == most or len(batch[0].tokens) != len(request.tokens)):
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch


def plans_of(
    requests: Sequence[Request], *, order: str, streams: int, seed: int
) -> list[DecodePlan]:
    """How each text is to be generated, in an order of its own."""
    from ..generation.plan import completing

    found = []
    for request in requests:
        blanks = blank_order(order, request.known.count(False), streams, (seed, request.index))
        sides = (blanks.position.tolist(), blanks.block.tolist())
        found.append(completing(request.tokens, request.known, *sides))
    return found


def blank_order(order: str, n: int, streams: int, words: tuple[int, int]) -> Order:
    """The order of n blanks that --order and --streams name."""
    from ..model.order import named, spelled

    kind, _, steps = order.partition(":")
    if spelled(kind) == "left_to_right":
        return named("strided", n, streams=streams)
    if streams != 1:
        raise ArmdError(f"--order {order} says its own blocks; leave out --streams {streams}")
    known = spelled(kind) == ("masking" if steps else "random")
    count = whole_number(steps or "1", 1, MOST_STEPS)
    if not known or count is None:
        raise ArmdError(
            f"no order '{order[:40]}'; use left-to-right, random or masking:T, T at least 1 "
            f"step and at most {MOST_STEPS}"
        )
    generator = seeded(*words, "order")
    return named(kind, n, steps=count, generator=generator)
