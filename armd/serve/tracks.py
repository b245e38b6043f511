"""Tracks: where do the texts of a pass stand? In plain numbers, because a small model's pass costs
less than a few tensors for each text would; what the pass takes is put together for all of them."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch

from ..cache import Cache, Placing
from ..canvas import Canvas
from ..fast import FastLM
from ..filling import check, uniforms
from ..modeling_armd import ArmdLM
from ..passes import FEW, Part, advance_together
from ..sampling import Ask, Sampling, draw_together
from ..shapes import Float, Int, Tensor
from ..strokes import Line, stroke
from .events import Landed, Rival


class Track:
    """One text being written: a canvas of one row, filled as `filling.Filling` fills it."""

    def __init__(
        self,
        model: ArmdLM,
        canvas: Canvas,
        cache: Cache,
        *,
        sampling: Sampling,
        generator: torch.Generator,
        eos: int | None = None,
        rivals: int = 0,
    ) -> None:
        check(model, canvas)
        self.cache, self.sampling = cache, sampling
        self.eos, self.rivals = eos, rivals
        self.position: list[int] = canvas.order.position[0].tolist()
        self.block: list[int] = canvas.order.block[0].tolist()
        self.uniform: list[float] = uniforms(1, len(self.position), [generator])[0].tolist()
        self.text: list[int] = canvas.tokens[0].tolist()
        self.known: list[bool] = canvas.known[0].tolist()
        self.ends = canvas.ends_by_row[0]
        self.written = list(self.known)
        self.seen = None
        if sampling.repetition_penalty != 1:
            shape = (1, model.config.vocab_size)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=model.device)
            self.seen[0, canvas.tokens[0][canvas.known[0]]] = True
        self.step, self.ended = 0, False

    @property
    def done(self) -> bool:
        return self.ended or self.step == len(self.ends) - 1

    @property
    def before(self) -> list[int]:
        """The positions that the step before filled."""
        return self.position[self.ends[self.step - 1] : self.ends[self.step]]

    @property
    def wanted(self) -> list[int]:
        """The positions that this step fills."""
        return self.position[self.ends[self.step] : self.ends[self.step + 1]]

    @property
    def chances(self) -> list[float]:
        return self.uniform[self.ends[self.step] : self.ends[self.step + 1]]

    @property
    def given(self) -> list[int]:
        """What is known of the positions wanted, or -1."""
        return [self.text[p] if self.known[p] else -1 for p in self.wanted]

    def line(self) -> Line:
        """Its part in a stroke."""
        before, wanted = self.before, self.wanted
        return Line(
            self.cache,
            [self.text[p] for p in before],
            [p + 1 for p in before],
            [p + 1 for p in wanted],
            self.chances,
            self.sampling.choice or (1.0, 0.0, 0.0, 0),
            self.given,
        )

    def opening(self, model: ArmdLM) -> Part:
        """What enters first, as `filling.opening` has it."""
        count, upto = self.ends[0], self.ends[1]
        wanted, block, device = upto - count, self.block[:count], model.device
        before = [bisect_left(block, own) for own in block]
        behind = [bisect_right(block, own) for own in block]
        table = partial(_table, device)
        placing = Placing(
            context_slot=table(range(count + 1)),
            context_limit=table([1, *(b + 1 for b in behind)]),
            strict_limit=table([*(b + 1 for b in before), *[count + 1] * wanted]),
            query_slot=table(range(upto)),
            query_limit=table([*behind, *[upto] * wanted]),
            context=count + 1,
            query=upto,
        )
        given, places = self.position[:count], [p + 1 for p in self.position[:upto]]
        rows = model.context_rows(table([self.text[p] for p in given]))
        return Part(self.cache, rows, table([0, *places[:count]]), table(places), placing)

    def take(
        self, tokens: list[int], logps: list[float], rivals: list[tuple[Rival, ...]]
    ) -> tuple[Landed, ...]:
        """Write down what was drawn for this step. Returns what is new."""
        landed = []
        for position, token, logp, others in zip(self.wanted, tokens, logps, rivals, strict=True):
            if not self.known[position]:
                landed.append(Landed(position, token, logp, others))
                self.text[position], self.written[position] = token, True
        if self.seen is not None:
            self.seen[0, tokens] = True
        self.step += 1
        self.ended = self.eos is not None and self._over(self.eos)
        return tuple(landed)

    def _over(self, eos: int) -> bool:
        """An EOS of its own is there, and everything before it."""
        if eos not in self.text:
            return False
        own = (
            position
            for position, token in enumerate(self.text)
            if token == eos and self.written[position] and not self.known[position]
        )
        first = next(own, None)
        return first is not None and all(self.written[:first])


def _table(device: torch.device, numbers: Sequence[int]) -> Int[Tensor, "1 n"]:
    return torch.tensor([[*numbers]], dtype=torch.long, device=device)


def step_together(model: ArmdLM, tracks: list[Track]) -> list[tuple[Landed, ...]]:
    """One pass and one draw for all. Returns what is new, track by track."""
    able = isinstance(model, FastLM) and model.whole
    if able and all(
        track.step and track.sampling.choice and len(track.wanted) <= FEW // 2 for track in tracks
    ):
        tokens, logps, logits = stroke(cast(FastLM, model), [track.line() for track in tracks])
    else:
        rows = advance_together(model, _parts(model, tracks))
        wanted = [own[0, -len(track.wanted) :] for own, track in zip(rows, tracks, strict=True)]
        logits = model.logits(torch.cat(wanted))
        tokens, logps = _draw(tracks, logits)
    found, at = [], 0
    for track in tracks:
        part = slice(at, at + len(track.wanted))
        rivals = _rivals(logits[part], track.rivals)
        found.append(track.take(tokens[part], logps[part], rivals))
        at = part.stop
    return found


def _parts(model: ArmdLM, tracks: list[Track]) -> list[Part]:
    """What each track takes part with: at first all that is given, then what was drawn last."""
    going = [track for track in tracks if track.step]
    before, wanted = [track.before for track in going], [track.wanted for track in going]
    tokens = [track.text[p] for track, at in zip(going, before, strict=True) for p in at]
    drawn, asked = ([*map(len, each)] for each in (before, wanted))
    table = partial(_table, model.device)
    context = model.embedding(table(tokens))
    context_at, query_at = (table([p + 1 for at in each for p in at]) for each in (before, wanted))
    made = zip(
        context.split(drawn, 1), context_at.split(drawn, 1), query_at.split(asked, 1), strict=True
    )
    return [
        Part(track.cache, *next(made)) if track.step else track.opening(model) for track in tracks
    ]


def _draw(tracks: list[Track], logits: Float[Tensor, "n v"]) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities, track after track."""
    uniform = torch.tensor([[u for track in tracks for u in track.chances]], dtype=torch.float64)
    given = [token for track in tracks for token in track.given]
    forced = torch.tensor([given]) if max(given) >= 0 else None
    asks = [Ask(len(track.wanted), track.sampling, track.seen) for track in tracks]
    token, logp = draw_together(logits[None], uniform, forced, asks)
    return token[0].tolist(), logp[0].tolist()


def _rivals(logits: Float[Tensor, "k v"], count: int) -> list[tuple[Rival, ...]]:
    """The most probable tokens of each row."""
    if not count:
        return [()] * len(logits)
    logp = logits.double().log_softmax(-1)
    best = logp.topk(min(count, logp.shape[1]), -1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(map(Rival, tokens, values)) for tokens, values in pairs]
