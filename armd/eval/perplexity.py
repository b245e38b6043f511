"""Perplexity of a text under a protocol and an order: what `armd eval ppl` computes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ArmdError
from ..runtime.processes import ProcessGroup
from ..runtime.progress import rate
from ..runtime.seeds import seeded
from .padding import filled, in_batches
from .windows import Protocol, Tally, Window, cut

if TYPE_CHECKING:
    from .corpora import Corpus
    from .load_model import Loaded
    from .scorer import Scorer

LOOK_AHEAD = 16
"""Batches read ahead and sorted by length, so that little is padded."""
DRAWN = ("shuffled", "random", "masking")
"""Orders that are drawn, so that their scores have an error."""


@dataclass(frozen=True)
class Scoring:
    """In which orders, and how many at a time, windows are scored."""

    order: Literal["left-to-right", "shuffled", "random", "strided", "masking"] = "left-to-right"
    """Exact left to right; as in training, rho tokens shuffled; random orders; strided runs side by
    side; a masking process."""
    rho: int = 32
    """Tokens of a shuffled order."""
    shuffle: Literal["move", "among"] = "move"
    """How they are shuffled, as in `armd train`."""
    streams: int = 4
    """Runs of a strided order."""
    steps: int = 1024
    """Steps of a masking process."""
    draws: int = 1
    """Orders drawn for each window, where the order is random, or draws of a baseline's bound; more
    give a standard error."""
    seed: int = 0
    batch: int = 8
    """Windows scored at a time."""
    limit: int | None = None
    """Score only so many windows of each data set."""


@dataclass
class Sums:
    """What windows have given so far; sums of processes add up."""

    nll: float = 0.0
    variance: float = 0.0
    """Of nll, from the spread of the draws."""
    tight: float = 0.0
    """The same nll, by the log of the mean probability over the draws."""
    counted: int = 0
    windows: int = 0

    def add(self, other: Sums) -> Sums:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def score_windows(
    scorer: Scorer, windows: Iterator[Window], scoring: Scoring, *, first: bool
) -> Iterator[Sums]:
    """Score windows, a batch at a time; yields each batch's sums. first: the first token counts."""
    skip = 0 if first else 1
    while some := list(islice(windows, scoring.batch * LOOK_AHEAD)):
        for places in in_batches([len(window.ids) for window in some], scoring.batch):
            yield score_batch(scorer, [some[place] for place in places], scoring, skip)


def score_batch(scorer: Scorer, windows: list[Window], scoring: Scoring, skip: int) -> Sums:
    import torch

    lengths = torch.tensor([len(window.ids) for window in windows])
    tokens = filled([window.ids for window in windows])
    column = torch.arange(tokens.shape[1])
    scored = (column >= skip) & (column < lengths[:, None])
    place = scorer.device
    with torch.inference_mode():
        here, mask = tokens.to(place), scored.to(place)
        totals = torch.stack(
            [
                row_totals(scorer, here, mask, windows, scoring, skip=skip, draw=draw)
                for draw in range(drawn(scoring, scorer.drawn))
            ]
        )
    totals, draws = totals.cpu(), len(totals)
    # rows of a baseline may share their draw of the noise, so they vary together
    each = totals.sum(1, keepdim=True) if scorer.drawn else totals
    spread = each.var(0).sum().item() / draws if draws > 1 else 0.0
    tight = totals.logsumexp(0) - log(draws)
    return Sums(
        -totals.mean(0).sum().item(),
        spread,
        -tight.sum().item(),
        int(scored.sum()),
        len(windows),
    )


def row_totals(
    scorer: Scorer,
    tokens: Any,
    scored: Any,
    windows: list[Window],
    scoring: Scoring,
    *,
    skip: int,
    draw: int,
) -> Any:
    """log p of each window's scored tokens, in one draw of the order, or of a baseline's noise."""
    from .scorer import BaselineScorer

    if isinstance(scorer, BaselineScorer):
        source = seeded(scoring.seed, windows[0].index, draw)
        return scorer.row_log_probs(tokens, scored, source)
    log_p = scorer.log_probs(tokens, draw_orders(windows, scoring, draw), skip)
    return log_p.double().masked_fill(~scored, 0.0).sum(1)


def drawn(scoring: Scoring, noisy: bool = False) -> int:
    """How many orders a window is scored in, or draws of a baseline's noise: a fixed order needs
    one."""
    return scoring.draws if noisy or scoring.order in DRAWN else 1


def draw_orders(windows: list[Window], scoring: Scoring, draw: int) -> Any:
    """One order a window, padded behind; drawn from the window's own seed, so that neither batch
    nor number of processes matters. None: left to right."""
    from ..model import order as orders

    if scoring.order == "left-to-right":
        return None
    longest = max(len(window.ids) for window in windows)
    found = []
    for window in windows:
        n = len(window.ids)
        source = seeded(scoring.seed, window.index, draw)
        order = orders.named(
            scoring.order,
            n,
            streams=min(scoring.streams, n),
            rho=min(scoring.rho, n),
            how=scoring.shuffle,
            steps=scoring.steps,
            generator=source,
        )
        found.append(padded(order, longest))
    return orders.stack(found)


def padded(order: Any, n: int) -> Any:
    """The order with padding drawn last, where no token of the text can see it."""
    import torch

    from ..model.order import Order

    more = torch.arange(len(order), n)
    if not len(more):
        return order
    last = int(order.block[-1]) + 1
    return Order(
        torch.cat([order.position, more]), torch.cat([order.block, last + more - len(order)])
    )


def perplexity(
    loaded: Loaded,
    corpus: Corpus,
    protocol: Protocol,
    scoring: Scoring,
    *,
    window: int,
    ranks: ProcessGroup = ProcessGroup(),  # noqa: B008
    report: Any = None,
) -> dict[str, Any]:
    """Score a text; everything one needs to know to do it again is in the result."""
    scorer, tally, sums = loaded.scorer(), Tally(), Sums()
    check(scorer, protocol, scoring, window)
    first = protocol.first and scorer.scores_first
    if protocol.wrapped and not scorer.from_nothing:
        first = False  # an autoregressive model has nothing before the window's own BOS
    start = time.perf_counter()
    mine = shared_windows(loaded, corpus, protocol, window, tally, scoring.limit, ranks)
    for part in score_windows(scorer, mine, scoring, first=first):
        sums.add(part)
        if report is not None:
            windows, tokens = sums.windows * ranks.world, sums.counted * ranks.world
            speed = rate(tokens, time.perf_counter() - start)
            report(windows, f"{windows:,} windows, {tokens:,} tokens, {speed}")
    sums = together(sums, ranks)
    if not tally.text_bytes and scoring.limit is None:
        raise ArmdError(f"{corpus.name} ({corpus.source}) holds no text; name another file")
    if not sums.counted:
        raise ArmdError(
            f"{corpus.name} ({corpus.source}) has {tally.tokens} tokens, fewer than a window of "
            f"{window}; lower --window, or use --protocol exact, which scores every token"
        )
    figures = averages(sums, tally, drawn(scoring, scorer.drawn))
    if scorer.drawn:  # a draw of its bound is no log-probability: their mean is all there is
        figures.pop("perplexity_log_mean_exp", None)
    if protocol.free_bos:
        figures["perplexity_counting_bos"] = exp(
            min(sums.nll / (sums.counted + sums.windows), 700.0)
        )
    return {
        "data": corpus.name,
        "split": corpus.split,
        "source": corpus.source,
        **figures,
        "rows": tally.rows,
        "windows": sums.windows,
        "tokens_scored": sums.counted,
        "tokens_dropped": tally.dropped,
        "first_token": "scored" if first else "neither scored nor counted",
        "bound": scorer.figure == "bound" or scoring.order in DRAWN,
        "pseudo_likelihood": scorer.figure == "pseudo-likelihood",
        "seconds": round(time.perf_counter() - start, 3),
    }


def shared_windows(
    loaded: Loaded,
    corpus: Corpus,
    protocol: Protocol,
    window: int,
    tally: Tally,
    limit: int | None,
    ranks: ProcessGroup,
) -> Iterator[Window]:
    """This process's windows of a text: each reads all of it and scores its share."""
    found = cut(
        protocol,
        corpus.rows(),
        loaded.encode,
        window=window,
        bos=loaded.bos,
        eos=loaded.eos,
        tally=tally,
        running=not corpus.ends,
    )
    return (w for w in islice(found, limit) if w.index % ranks.world == ranks.rank)


def averages(sums: Sums, tally: Tally, draws: int) -> dict[str, Any]:
    """Perplexity and its kin. Windows of one length make the mean over sequences (SEDD) and the
    mean over tokens (MDLM) the same number."""
    mean = sums.nll / sums.counted
    highest = exp(min(mean, 700.0))  # a poor bound may be beyond any float; nats tell the truth
    figures: dict[str, Any] = {
        "perplexity": highest,
        "nats_per_token": mean,
        "bits_per_byte": mean / log(2) * tally.tokens / max(1, tally.text_bytes),
    }
    if draws > 1:
        error = sqrt(sums.variance) / sums.counted
        tight = sums.tight / sums.counted
        figures |= {
            "nats_standard_error": error,
            "perplexity_standard_error": highest * error,
            "perplexity_log_mean_exp": exp(min(tight, 700.0)),
        }
    return figures


def together(sums: Sums, ranks: ProcessGroup) -> Sums:
    """The sums of all processes."""
    nll, variance, tight, counted, windows = ranks.total(list(asdict(sums).values()))
    return Sums(nll, variance, tight, int(counted), int(windows))


def check(scorer: Scorer, protocol: Protocol, scoring: Scoring, window: int) -> None:
    if window > scorer.max_length:
        raise ArmdError(
            f"a window of {window} passes the model's {scorer.max_length} tokens; lower --window"
        )
    if scoring.order != "left-to-right" and scorer.drawn:
        raise ArmdError("this model has its own noise and no orders; leave out --order")
    if scoring.order != "left-to-right" and not scorer.any_order:
        raise ArmdError("this model is autoregressive; score it with --order left-to-right")
    for name in ("draws", "batch", "streams", "steps", "rho"):
        if not 1 <= getattr(scoring, name) < 2**31:
            raise ArmdError(f"--{name} {getattr(scoring, name)} must be at least 1, below 2**31")
    if scoring.limit is not None and scoring.limit < 1:
        raise ArmdError(f"--limit {scoring.limit} must be at least 1")
