"""A crossing: how do the rows of many texts go through the layers of one kind?"""

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch

from ..model.layers import Layer
from ..model.modeling_armd import ArmdLM
from ..model.shapes import Float, Int, Tensor
from ..native.packed import FastLayer, through
from ..native.structs import SequenceRowsFields
from .kv_cache import Entry

FEW = 128
"""A part with more rows a text than this, the prefill of a long prompt, passes on its own: layer.c
is for few, and what the others get must not depend on who comes along."""


@dataclass(frozen=True)
class Crossing:
    """How the rows of all parts go through the layers of one kind, laid end to end, text by text.
    Of each text the first rows leave keys and values in its cache."""

    entries: list[Entry]

    @cached_property
    def sizes(self) -> list[int]:
        """How many rows each part has."""
        return [entry.batch * entry.rows for entry in self.entries]

    @cached_property
    def owns(self) -> list[int]:
        """How many of them leave keys."""
        return [entry.batch * entry.own for entry in self.entries]

    @cached_property
    def braid(self) -> Int[Tensor, "n"]:
        """Where the rows stand among all that leave keys, followed by all that do not."""
        found: list[int] = []
        own, other = 0, sum(self.owns)
        for entry in self.entries:
            more = entry.rows - entry.own
            for _ in range(entry.batch):
                found += [*range(own, own + entry.own), *range(other, other + more)]
                own, other = own + entry.own, other + more
        return torch.tensor(found)

    @cached_property
    def kinds(self) -> tuple[Int[Tensor, "m"], Int[Tensor, "k"]]:
        """Which of all rows leave keys, and which do not."""
        device, left = self.entries[0].cache.turn.device, self.braid < sum(self.owns)
        own, others = (which.nonzero()[:, 0] for which in (left, ~left))
        return own.to(device, non_blocking=True), others.to(device, non_blocking=True)

    def through(
        self,
        model: ArmdLM,
        indices: range,
        rows: Float[Tensor, "1 n d"],
        turn: Float[Tensor, "1 n half 2"],
        *,
        last: bool = False,
    ) -> Float[Tensor, "1 k d"]:
        """Some layers: in each, some rows leave keys and values, then all see the whole cache of
        their text, what just entered included. With `last`, those that left keys end at the last
        layer."""
        layers = [cast(Layer, model.layers[index]) for index in indices]
        fast = [layer for layer in layers if isinstance(layer, FastLayer) and layer.fits]
        few = max(entry.rows for entry in self.entries) <= FEW
        if layers and len(fast) == len(layers) and few:
            return through(fast, rows, turn, self.texts(indices[0]), last=last)
        sizes = self.sizes
        leave = slice(None) if sizes == self.owns else self.kinds[0]
        for index, layer in zip(indices, layers, strict=True):
            normed = layer.attention_norm(rows)
            self.enter(index, layer.keys_values(normed[:, leave], turn[:, leave]))
            if last and index == indices[-1]:
                rows, normed, turn = (t[:, self.kinds[1]] for t in (rows, normed, turn))
                sizes = [size - left for size, left in zip(sizes, self.owns, strict=True)]
            rows = layer.project_and_mlp(
                rows, self.attend(index, layer.queries(normed, turn), sizes)
            )
        return rows

    def enter(self, index: int, made: tuple[Tensor, Tensor]) -> None:
        parts = zip(*(rows[0].split(self.owns) for rows in made), strict=True)
        for entry, part in zip(self.entries, parts, strict=True):
            entry.enter(index, part)

    def attend(
        self, index: int, query: Float[Tensor, "1 n h e"], sizes: list[int]
    ) -> Float[Tensor, "1 n h e"]:
        parts = zip(self.entries, query[0].split(sizes), strict=True)
        seen = [entry.attend(index, part) for entry, part in parts]
        return (seen[0] if len(seen) == 1 else torch.cat(seen))[None]

    def texts(self, first: int) -> list[SequenceRowsFields]:
        """The same from layer `first` on, as layer.c is told it."""
        return [text for entry in self.entries for text in entry.texts(first)]
