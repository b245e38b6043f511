"""A decode step in torch: the new rows of many sequences through every layer together.

The context rows of what was just drawn and the query rows of the next block go side by side; each
sees the cache of its own sequence. Sequences of unlike lengths and blocks share a pass without any
padding. Those that share a cache, because they take equal steps, are one batch in attention.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch

from ..model.layers import Layer
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Tensor
from .kv_cache import CacheWindow
from .outputs import StepResult
from .query_rows import inputs_of, neighbor_queries, prefix_queries
from .sampling import draw
from .sequence import Sequence


@torch.no_grad()
def step(model: ArmdLM, sequences: list[Sequence]) -> list[StepResult]:
    """Take each sequence a step further."""
    groups = grouped(sequences)
    rows = forward(model, groups)
    logits = model.logits(torch.cat(rows)).split(list(map(len, rows)))
    results: dict[Sequence, StepResult] = {}
    for group, own in zip(groups, logits, strict=True):
        results |= zip(group, _sample(group, own.view(len(group), -1, own.shape[1])), strict=True)
    return [results[sequence] for sequence in sequences]


def grouped(sequences: Iterable[Sequence]) -> list[list[Sequence]]:
    """Sequences that share a cache, in the order of its rows; the rows of others are dropped."""
    groups: dict[int, list[Sequence]] = {}
    for sequence in sequences:
        groups.setdefault(id(sequence.cache), []).append(sequence)
    for group in groups.values():
        group.sort(key=lambda sequence: sequence.row)
        cache = group[0].cache
        if len(group) < cache.batch:
            cache.keep([sequence.row for sequence in group])
            for row, sequence in enumerate(group):
                sequence.row = row
    return list(groups.values())


def _sample(group: list[Sequence], logits: Float[Tensor, "b k v"]) -> list[StepResult]:
    """Draw the tokens of the group's next step."""
    first, known = group[0], [sequence.plan.known for sequence in group]
    begin = first.plan.step_ends[first.step]
    end = begin + first.n_draws
    uniform = torch.tensor([s.uniform[begin:end].tolist() for s in group], dtype=torch.float64)
    wanted = [sequence.next_positions for sequence in group]
    forced = seen = None
    if any(there[at] for there, places in zip(known, wanted, strict=True) for at in places):
        forced = torch.tensor(
            [[s.tokens[p] if s.plan.known[p] else -1 for p in s.next_positions] for s in group]
        )
    if first.seen is not None:
        tables = [torch.frombuffer(s.seen, dtype=torch.bool) for s in group if s.seen is not None]
        seen = torch.stack(tables)
    try:
        token, logp = draw(logits, uniform, first.sampling, seen, forced)
    except Exception as error:
        return [error] * len(group)
    for sequence, tokens, logps in zip(group, token.tolist(), logp.tolist(), strict=True):
        sequence.store(tokens, logps)
    return [sequence.advance(own) for sequence, own in zip(group, logits, strict=True)]


def forward(model: ArmdLM, groups: list[list[Sequence]]) -> list[Float[Tensor, "bk d"]]:
    """The final rows of the next step's tokens, group by group."""
    inputs, two = inputs_of(model, groups), model.config.query in ("prefix", "mean")
    queries = (
        prefix_queries(model, inputs) if two else [neighbor_queries(model, own) for own in inputs]
    )
    pairs = list(zip(inputs, queries, strict=True))
    rows = [torch.cat([own.context, more.hidden], 1).flatten(0, 1) for own, more in pairs]
    rope = torch.cat([own.rope(model, more).flatten(0, 1) for own, more in pairs])
    low, above = RaggedRows([own.window(model, more) for own, more in pairs]), len(model.layers)
    above = model.config.n_two_stream if two else above
    hidden = low.run_layers(model, range(above), torch.cat(rows)[None], rope[None])
    sizes = [len(own.group) * more.keep.shape[1] for own, more in pairs]
    if above < len(model.layers):
        high = RaggedRows([own.high_window() for own in inputs])
        rope = torch.cat([own.cache.rope[own.query_at].flatten(0, 1) for own in inputs])
        hidden = high.run_layers(model, range(above, len(model.layers)), hidden, rope[None])
    found = []
    for own, kept in zip(inputs, hidden[0].split(sizes), strict=True):
        wanted = own.group[0].n_draws
        found.append(kept.view(len(own.group), -1, kept.shape[1])[:, -wanted:].flatten(0, 1))
    final = model.norm(torch.cat(found)[None])[0]
    return list(final.split(list(map(len, found))))


@dataclass(frozen=True)
class RaggedRows:
    """The rows of all groups in a range of layers, laid end to end, sequence by sequence: of each
    sequence the rows that write keys and values, then the others."""

    windows: list[CacheWindow]

    @cached_property
    def sizes(self) -> list[int]:
        """How many rows each group has."""
        return [window.cache.batch * window.rows for window in self.windows]

    def run_layers(
        self,
        model: ArmdLM,
        indices: range,
        hidden: Float[Tensor, "1 n d"],
        rope: Float[Tensor, "1 n half 2"],
    ) -> Float[Tensor, "1 k d"]:
        """In each layer some rows write keys and values, then all see what their sequence has in
        its cache. Out of the last layer come the rows that are to be kept."""
        written = [window.cache.batch * window.n_kv for window in self.windows]
        writers = self._index(lambda w: torch.arange(w.n_kv)[None] if w.n_kv < w.rows else None)
        sizes = self.sizes
        for index in indices:
            layer, last = cast(Layer, model.layers[index]), index == indices[-1]
            normed = layer.attention_norm(hidden)
            pair = layer.keys_values(normed[:, writers], rope[:, writers])
            made = zip(self.windows, *(side[0].split(written) for side in pair), strict=True)
            for window, key, value in made:
                window.write(index, key, value)
            if last:
                kept = self._index(lambda window: window.keep)
                hidden, normed, rope = (t[:, kept] for t in (hidden, normed, rope))
                sizes = [
                    size if window.keep is None else window.keep.numel()
                    for size, window in zip(sizes, self.windows, strict=True)
                ]
            query = zip(self.windows, layer.queries(normed, rope)[0].split(sizes), strict=True)
            bias = layer.right_bias
            seen = [window.attend(index, rows, bias, last=last) for window, rows in query]
            hidden = layer.project_and_mlp(hidden, torch.cat(seen)[None])
        return hidden

    def _index(self, columns: Callable[[CacheWindow], Tensor | None]) -> slice | Tensor:
        """Where the rows stand that are given by their numbers in each sequence; None: all."""
        if all(columns(window) is None for window in self.windows):
            return slice(None)
        found, first = [], 0
        for window, size in zip(self.windows, self.sizes, strict=True):
            chosen, device = columns(window), window.cache.rope.device
            chosen = torch.arange(window.rows)[None] if chosen is None else chosen
            starts = first + torch.arange(0, size, window.rows, device=device)[:, None]
            found.append((starts + chosen.to(device)).flatten())
            first += size
        return torch.cat(found)
