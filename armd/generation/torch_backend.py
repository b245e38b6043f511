"""A decode step in torch: the new rows of many sequences through every layer together.

The context rows of what was just drawn and the query rows of the next block go side by side; each
sees the cache of its own sequence. Sequences of unlike lengths and blocks share a pass without any
padding. Those that share a cache, because they take equal steps, are one batch in attention.
"""

from collections.abc import Iterable
from typing import cast

import torch

from ..model.adapted_linear import taken
from ..model.eval_mode import without_dropout
from ..model.layers import Layer
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Tensor
from ..native.sample import draw
from .kv_cache import CacheWindow
from .outputs import StepResult, TopLogprob
from .query_rows import GroupRows
from .sequence import Sequence


@torch.no_grad()
def step(model: ArmdLM, sequences: list[Sequence]) -> list[StepResult]:
    """Take each sequence a step further."""
    groups = grouped(sequences)
    with without_dropout(model):  # not for longer: between two steps it may be trained
        rows = forward(model, groups)
    logits = model.logits(torch.cat(rows)).split(list(map(len, rows)))
    results: dict[Sequence, StepResult] = {}
    for group, own in zip(groups, logits, strict=True):
        each = own.view(len(group), len(own) // len(group), own.shape[1])
        results |= zip(group, _sample(group, each), strict=True)
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
    first, seen = group[0], None
    if first.partial:
        return [sequence.advance([]) for sequence in group]
    begin = first.plan.step_ends[first.step]
    end = begin + first.n_draws
    uniform = torch.tensor([s.uniform[begin:end].tolist() for s in group], dtype=torch.float64)
    given = [[s.tokens[p] if s.plan.known[p] else -1 for p in s.next_positions] for s in group]
    forced = torch.tensor(given) if any(token >= 0 for row in given for token in row) else None
    if first.seen is not None:
        tables = [torch.frombuffer(s.seen, dtype=torch.bool) for s in group if s.seen is not None]
        seen = torch.stack(tables)
    try:
        token, logp = draw(logits, uniform, first.sampling, seen, forced)
    except Exception as error:
        return [error] * len(group)
    for sequence, tokens, logps in zip(group, token.tolist(), logp.tolist(), strict=True):
        sequence.store(tokens, logps)
    return [s.advance(_top_logprobs(own, s)) for s, own in zip(group, logits, strict=True)]


def _top_logprobs(logits: Float[Tensor, "k v"], sequence: Sequence) -> list[tuple[TopLogprob, ...]]:
    """The most probable tokens of each row."""
    if not sequence.top_logprobs:
        return [()] * len(logits)
    best = logits.double().log_softmax(-1).topk(sequence.top_logprobs, -1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(map(TopLogprob, tokens, values)) for tokens, values in pairs]


def forward(model: ArmdLM, groups: list[list[Sequence]]) -> list[Float[Tensor, "bk d"]]:
    """The final rows of the next step's tokens, group by group."""
    inputs, depth = [GroupRows(model, group) for group in groups], len(model.layers)
    above = model.config.n_two_stream if inputs[0].aggregates else depth
    hidden = torch.cat([own.hidden.flatten(0, 1) for own in inputs])[None]
    rope = torch.cat([own.rope.flatten(0, 1) for own in inputs])[None]
    hidden = run_layers(model, range(above), [own.window() for own in inputs], hidden, rope)
    kept = [own.queries.keep.numel() for own in inputs]
    if above < depth:
        rope = torch.cat([own.cache.rope[own.query_at].flatten(0, 1) for own in inputs])[None]
        windows = [own.high_window() for own in inputs]
        hidden = run_layers(model, range(above, depth), windows, hidden, rope)
    found = []
    for own, rows in zip(inputs, hidden[0].split(kept), strict=True):
        wanted = own.group[0].n_draws  # the last ones; in a prefill there are rows of what is given
        rows = rows.view(len(own.group), -1, rows.shape[1])
        found.append(rows[:, rows.shape[1] - wanted :].flatten(0, 1))
    final = model.norm(torch.cat(found)[None])[0]
    return list(final.split(list(map(len, found))))


def run_layers(
    model: ArmdLM,
    indices: range,
    windows: list[CacheWindow],
    hidden: Float[Tensor, "1 n d"],
    rope: Float[Tensor, "1 n half 2"],
) -> Float[Tensor, "1 k d"]:
    """The rows of all groups in a range of layers, laid end to end, sequence by sequence. In each
    layer some rows write keys and values, then all see what their sequence has in its cache. Out of
    the last layer come the rows that are to be kept."""
    written = [window.cache.batch * window.n_kv for window in windows]
    sizes = [window.cache.batch * window.rows for window in windows]
    writers = _index(
        windows, [torch.arange(w.n_kv)[None] if w.n_kv < w.rows else None for w in windows]
    )
    kept = _index(windows, [window.keep for window in windows])
    out = [own.adapted.flatten(0, 1) for own in windows if own.adapted is not None]
    adapted = torch.cat(out)[None].to(hidden.dtype) if out else None
    for index in indices:
        layer, last = cast(Layer, model.layers[index]), index == indices[-1]
        normed = layer.attention_norm(hidden)
        pair = layer.keys_values(normed[:, writers], rope[:, writers], *taken(adapted, writers))
        for window, key, value in zip(windows, *(s[0].split(written) for s in pair), strict=True):
            window.write(index, key, value)
        if last and not isinstance(kept, slice):
            hidden, normed, rope = (t[:, kept] for t in (hidden, normed, rope))
            adapted = next(iter(taken(adapted, kept)), None)
            sizes = [window.keep.numel() for window in windows if window.keep is not None]
        queries = layer.queries(normed, rope, *taken(adapted))[0].split(sizes)
        seen = [
            window.attend(index, rows, layer.right_bias, last=last)
            for window, rows in zip(windows, queries, strict=True)
        ]
        hidden = layer.project_and_mlp(hidden, torch.cat(seen)[None], *taken(adapted))
    return hidden


def _index(windows: list[CacheWindow], numbers: list[Tensor | None]) -> slice | Tensor:
    """Where rows stand that are given by their numbers in each sequence of a window; None: all."""
    if all(own is None for own in numbers):
        return slice(None)
    found, first = [], 0
    for window, own in zip(windows, numbers, strict=True):
        size, device = window.cache.batch * window.rows, window.cache.rope.device
        own = torch.arange(window.rows)[None] if own is None else own
        starts = first + torch.arange(0, size, window.rows, device=device)[:, None]
        found.append((starts + own.to(device)).flatten())
        first += size
    return torch.cat(found)
