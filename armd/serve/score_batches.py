"""Texts to be scored: several in one forward pass, each padded behind its end."""

import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from ..generation.outputs import TopLogprob
from ..model import order as orders
from ..model.modeling_armd import ArmdLM
from ..model.order import Order

TURN_SECONDS = 0.05
"""How long a batch of texts may take, if it has more than one."""
ROWS = 128
"""Rows of logits in memory at a time."""


@dataclass(frozen=True)
class TokenScores:
    """A text's log-probabilities, position by position, in nats."""

    logp: list[float]
    top: list[tuple[TopLogprob, ...]]
    """The most probable tokens at each position, as many as were asked for."""


@dataclass(eq=False)
class ScoreJob:
    """A text that waits to be scored."""

    tokens: list[int]
    order: Order
    top_logprobs: int = 0
    future: "Future[TokenScores]" = field(default_factory=Future)


class ScoreQueue:
    """The texts that wait, and how many of them fit into a turn."""

    def __init__(self) -> None:
        self.waiting: deque[ScoreJob] = deque()
        self.tokens_per_second = 0.0
        """As the last batch went; unknown at first, so the first batch has one text."""

    def take(self) -> list[ScoreJob]:
        """The next batch, in the order of arrival. Padding counts, because it costs as much."""
        batch: list[ScoreJob] = []
        room, longest = self.tokens_per_second * TURN_SECONDS, 0
        while self.waiting:
            longest = max(longest, len(self.waiting[0].tokens))
            if batch and (len(batch) + 1) * longest > room:
                break
            job = self.waiting.popleft()
            if job.future.set_running_or_notify_cancel():
                batch.append(job)
        return batch

    def run(self, model: ArmdLM, batch: list[ScoreJob]) -> None:
        """Score a batch and hand out the results, or what went wrong."""
        start = time.perf_counter()
        try:
            found = score_texts(model, batch)
        except BaseException as error:
            for job in batch:
                job.future.set_exception(error)
            return
        tokens = len(batch) * max(len(job.tokens) for job in batch)
        self.tokens_per_second = tokens / (time.perf_counter() - start)
        for job, scores in zip(batch, found, strict=True):
            job.future.set_result(scores)


@torch.no_grad()
def score_texts(model: ArmdLM, jobs: list[ScoreJob]) -> list[TokenScores]:
    """log p of each token of each text, in one pass. What is padded comes last in its order, so no
    token of the text sees it."""
    length, device = max(len(job.tokens) for job in jobs), model.device
    padded = [[*job.tokens, *[0] * (length - len(job.tokens))] for job in jobs]
    tokens = torch.tensor(padded, device=device)
    order = orders.stack([extended(job.order, length) for job in jobs]).to(device)
    rows, target = model.hidden(tokens, order), tokens.gather(1, order.position)
    return [_scores(model, *text) for text in zip(jobs, rows, target, strict=True)]


def extended(order: Order, length: int) -> Order:
    """The order with positions behind it, up to a length, in blocks of their own."""
    more = torch.arange(len(order), length)
    block = int(order.block[-1]) + 1 + torch.arange(len(more))
    return Order(torch.cat([order.position, more]), torch.cat([order.block, block]))


def _scores(model: ArmdLM, job: ScoreJob, rows: torch.Tensor, target: torch.Tensor) -> TokenScores:
    """The scores of one text, from the order of generation to the order of reading. A token and the
    most probable ones are read from one softmax, so that one of them has the same number in both.
    The logits come row by row, as in decoding: packed weights need not be unpacked for them."""
    n, place = len(job.tokens), job.order.inverse().tolist()
    own: list[float] = []
    top: list[tuple[TopLogprob, ...]] = []
    for part, wanted in zip(rows[:n].split(ROWS), target[:n].split(ROWS), strict=True):
        logp = model.logits(part).float().log_softmax(-1)
        own += logp.gather(1, wanted[:, None])[:, 0].tolist()
        best = logp.topk(min(job.top_logprobs, logp.shape[1]), -1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        top += [tuple(map(TopLogprob, *pair)) for pair in pairs]
    return TokenScores([own[k] for k in place], [top[k] for k in place])
