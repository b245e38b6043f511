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
        self.native, self.max_rows = None, max_rows
        if isinstance(model, FastLM) and self.is_native(model):
            self.native = NativeDecoder(model)
        self.torch = partial(torch_backend.step, model)

    @staticmethod
    def is_native(model: ArmdLM) -> bool:
        """The C backend can do it: weights are packed, and every layer has a layout it knows."""
        return isinstance(model, FastLM) and model.whole

    def step(self, sequences: list[Sequence]) -> list[StepResult]:
        """One step of each, and what it generated. Long prefills have a forward pass of their own:
        what a sequence gets must not depend on the others."""
        able: list[Sequence] = []
        rest: list[Sequence] = []
        long: list[Sequence] = []
        for sequence in sequences:
            if sequence.n_rows > self.max_rows:
                long.append(sequence)
            else:
                (able if self.native else rest).append(sequence)
        if self.native and len(able) == len(sequences):
            return self.native.step(sequences)
        results: dict[Sequence, StepResult] = {}
        if self.native and able:
            results |= zip(able, self.native.step(able), strict=True)
        for part in [rest, *torch_backend.grouped(long)]:
            results |= zip(part, self.torch(part) if part else [], strict=True)
        return [results[sequence] for sequence in sequences]
