"""Scoring: several texts in one forward pass, padded behind their ends. A long pass is interrupted
between two modules for decode steps and for shorter texts to be scored."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ..generation.outputs import TopLogprob
from ..model import order as orders
from ..model.modeling_armd import ArmdLM
from ..model.order import Order

TURN_SECONDS = 0.05
"""How long a batch of texts may take, if it has more than one; and after how long, or little more,
a longer one makes way for others."""
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
        self.under_way: list[PartClock] = []
        """The batches being scored, each in the middle of the one before it."""
        self.tokens_per_second = 0.0
        """As the last batch went; unknown at first, so the first batch has one text."""

    def add(self, job: ScoreJob) -> None:
        self.waiting = deque(one for one in self.waiting if not one.future.cancelled())
        self.waiting.append(job)

    def count(self) -> int:
        """Of those that wait, without texts whose clients have left."""
        return sum(not job.future.cancelled() for job in list(self.waiting))

    def take(self) -> list[ScoreJob]:
        """The next batch. Padding counts, because it costs as much."""
        batch: list[ScoreJob] = []
        room, longest = self.tokens_per_second * TURN_SECONDS, 0
        while job := self._next():
            longest = max(longest, len(job.tokens))
            if batch and (len(batch) + 1) * longest > room:
                break
            self.waiting.remove(job)
            if job.future.set_running_or_notify_cancel():
                batch.append(job)
        return batch

    def _next(self) -> ScoreJob | None:
        """The oldest text, so that each has its turn; in the middle of a batch the shortest, if
        that batch makes way for it."""
        if not self.under_way:
            return self.waiting[0] if self.waiting else None
        job = min(self.waiting, key=lambda job: len(job.tokens), default=None)
        speed, clock = self.tokens_per_second or math.inf, self.under_way[-1]
        return job if job and clock.makes_way_for(len(job.tokens), speed) else None

    def run(self, model: ArmdLM, batch: list[ScoreJob], turn: Callable[[float], None]) -> float:
        """Score a batch and hand out the results, or what went wrong. `turn` is called where others
        may have their turn, with the seconds since the last one; those since then are returned."""
        longest = max(len(job.tokens) for job in batch)
        clock = PartClock(turn, longest)
        self.under_way.append(clock)
        try:
            with before_each_part(model, clock.part):
                found = score_texts(model, batch)
        except BaseException as error:
            for job in batch:
                job.future.set_exception(error)
            return clock.since()
        finally:
            self.under_way.pop()
            rest = clock.since()
            if self.under_way:
                self.under_way[-1].lent += clock.lent + clock.spent + rest
        self.tokens_per_second = len(batch) * longest / (clock.spent + rest)
        for job, scores in zip(batch, found, strict=True):
            job.future.set_result(scores)
        return rest


class PartClock:
    """Seconds that a pass takes, without those of the turns of others."""

    def __init__(self, turn: Callable[[float], None], longest: int) -> None:
        self.turn, self.spent, self.begin, self.inside = turn, 0.0, time.perf_counter(), False
        self.longest, self.lent = longest, 0.0
        """Tokens of its longest text; seconds of other texts that were scored in the middle."""

    def makes_way_for(self, tokens: int, speed: float) -> bool:
        """Whether a text is scored before the pass goes on. It has at most half of its tokens, and
        is expected to take no longer than the pass has had more than texts like it: so the pass has
        about half of the time, and a text waits for no more than about the time it takes."""
        return 2 * tokens <= self.longest and tokens <= speed * (self.spent - self.lent)

    def since(self) -> float:
        """Seconds since the last turn."""
        return time.perf_counter() - self.begin

    def part(self) -> None:
        """A part of the pass is over."""
        seconds = self.since()
        if self.inside or seconds < TURN_SECONDS:  # others may go through the same layers
            return
        self.inside, self.spent = True, self.spent + seconds
        try:
            self.turn(seconds)
        finally:
            self.inside, self.begin = False, time.perf_counter()


@contextmanager
def before_each_part(model: ArmdLM, call: Callable[[], None]) -> Iterator[None]:
    """Inside, `call` is called before each module that a pass goes through."""
    hooks = [part.register_forward_pre_hook(lambda *_: call()) for part in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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
