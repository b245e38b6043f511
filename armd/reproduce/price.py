"""Stage price: what drawing S tokens at a time costs, split in two.

The price of the *order*: the text in strided order, still token by token, against left to right.
The price of *independence*: tokens of a block drawn without seeing each other, against that. And
how far apart the two conditionals of each such token are: the overlap sum_v min(p_v, q_v)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..data.dataset import open_dataset
from ..model import order as orders
from ..model.order import Order
from ..model.shapes import Float, Int, Tensor
from .result_file import Findings
from .runs import Study, price_runs
from .scores import BATCH, Batches, dataset_of, heldout, load, weights_of
from .train_runs import require

STREAMS = (2, 4, 8, 16)
ROWS = 64
"""Windows are enough: all orders score the same ones, and only differences count."""


def measure(study: Study, findings: Findings) -> None:
    length = study.scale.base.network.length
    whole = [(t, s) for t, s in heldout(study) if bool(s.all())][: ROWS // BATCH]
    begins, data = sentence_begins(study), dataset_of(study)
    streams = [s for s in STREAMS if 2 * s <= length]
    for trained in study.chosen(price_runs(study.scale)):
        folder = require(study, trained.name)
        facts = {**weights_of(folder), **data, "rows": ROWS, "errors": "of paired windows"}
        findings.entry(
            trained.name, facts, lambda folder=folder: prices(load(folder), whole, streams, begins)
        )


@torch.no_grad()
def prices(model: Any, batches: Batches, streams: list[int], begins: set[int]) -> dict[str, Any]:
    """Nats per token of every order, the standard errors of their differences, from window to
    window, and the overlap."""
    figures: dict[str, Any] = {}

    def nats(name: str, order_of: Callable[[Tensor], Order]) -> Float[Tensor, "windows"]:
        from ..model.likelihood import log_likelihood

        found = torch.cat(
            [-log_likelihood(model, t, order_of(t)).double().mean(1) for t, _ in batches]
        )
        figures[name] = float(found.mean())
        return found

    base = nats("left to right", lambda t: orders.left_to_right(t.shape[1]))
    for s in streams:
        together = orders.strided(batches[0][0].shape[1], s)
        alone = one_by_one(together)
        ordered = nats(f"S={s} one by one", lambda t, o=alone: o)
        parallel = nats(f"S={s}", lambda t, o=together: o)
        sentences = nats(
            f"S={s} from sentences",
            lambda t, s=s: orders.stack([from_sentences(row, s, begins) for row in t]),
        )
        pairs = ((ordered, base), (parallel, ordered), (parallel, base), (sentences, base))
        figures[f"S={s} errors"] = [paired_error(one - other) for one, other in pairs]
        figures[f"S={s} overlap"] = overlap(model, batches, together, alone)
    return figures


def paired_error(difference: Float[Tensor, "windows"]) -> float:
    """Of a mean of differences of the same windows."""
    count = len(difference)
    return float(difference.std() / count**0.5) if count > 1 else 0.0


def one_by_one(order: Order) -> Order:
    """The same positions in the same order, each a block of its own."""
    return Order(order.position, torch.arange(len(order)))


def overlap(model: Any, batches: Batches, together: Order, alone: Order) -> float:
    """Mean of sum_v min(p_v, q_v) over the tokens that share a block with an earlier one: p sees
    those, q does not."""
    later = torch.zeros(len(together), dtype=torch.bool)
    later[1:] = together.block[1:] == together.block[:-1]
    total, places = 0.0, 0
    for tokens, _ in batches:
        for part in tokens.split(8):
            p, q = (
                model(part, order=order).logits[:, later].softmax(-1) for order in (alone, together)
            )
            shared = torch.minimum(p, q).double().sum(-1)
            total, places = total + float(shared.sum()), places + shared.numel()
    return total / places


def sentence_begins(study: Study) -> set[int]:
    """Tokens that end a sentence: a stream may begin behind one."""
    tokenizer = open_dataset(study.data).tokenizer()
    return {
        token
        for token in range(tokenizer.vocab_size)
        if str(tokenizer.decode([token])).rstrip().endswith((".", "!", "?"))
    }


def from_sentences(row: Int[Tensor, "n"], streams: int, ends: set[int]) -> Order:
    """Strided streams of unlike lengths: each but the first begins behind the end of a sentence
    that is nearest to where it would begin. (To write so, one must choose these places first.)"""
    n = len(row)
    usual = [-(-n * index // streams) for index in range(streams)]
    behind = [place + 1 for place, token in enumerate(row.tolist()) if token in ends][:-1]
    heads = [0]
    for place in usual[1:]:
        near = [b for b in behind if b > heads[-1] and abs(b - place) <= n // (2 * streams)]
        heads.append(min(near, key=lambda b: abs(b - place)) if near else max(place, heads[-1] + 1))
    return streams_from(heads, n)


def streams_from(heads: list[int], n: int) -> Order:
    """Heads one by one, then the next token of every stream that has one left, together."""
    ends = [*heads[1:], n]
    position, block = list(heads), list(range(len(heads)))
    for offset in range(1, max(end - head for head, end in zip(heads, ends, strict=True))):
        now = [h + offset for h, end in zip(heads, ends, strict=True) if h + offset < end]
        position += now
        block += [len(heads) - 1 + offset] * len(now)
    return Order(torch.tensor(position), torch.tensor(block))
