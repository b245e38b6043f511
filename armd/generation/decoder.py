"""The decoder: takes sequences a step further, each on the backend that suits it."""

from functools import partial

from ..model.modeling_armd import ArmdLM
from ..native.packed import FastLM
from . import torch_backend
from .native_backend import MAX_ROWS, NativeDecoder
from .outputs import StepResult
from .sequence import Sequence


class Decoder:
    """Decode steps of one model, whose weights stay where they are."""

    def __init__(self, model: ArmdLM, *, max_rows: int = MAX_ROWS) -> None:
        """`max_rows`: how many rows of a sequence the C backend takes."""
        self.model, self.max_rows = model, max_rows
        self.backend = partial(torch_backend.step, model)
        if isinstance(model, FastLM) and self.is_native(model):
            self.backend = NativeDecoder(model).step

    @staticmethod
    def is_native(model: ArmdLM) -> bool:
        """The C backend can do it: weights are packed, and every layer has a layout it knows."""
        return isinstance(model, FastLM) and model.whole

    def step(self, sequences: list[Sequence]) -> list[StepResult]:
        """One step of each, and what it generated. Long prefills have a forward pass of their own:
        what a sequence gets must not depend on the others."""
        short = [sequence for sequence in sequences if sequence.n_rows <= self.max_rows]
        if len(short) == len(sequences):
            return self.backend(sequences)
        results = dict(zip(short, self.backend(short) if short else [], strict=True))
        long = [sequence for sequence in sequences if sequence not in results]
        for group in torch_backend.grouped(long):
            results |= zip(group, torch_backend.step(self.model, group), strict=True)
        return [results[sequence] for sequence in sequences]
