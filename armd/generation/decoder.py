"""The decoder: takes sequences a step further, on the backend that suits the model."""

from ctypes import c_int

from ..model.modeling_armd import ArmdLM
from ..native.packed import FastLM
from . import torch_backend
from .native_backend import MAX_ROWS, NEVER, NativeDecoder
from .outputs import Rounds
from .sequence import Sequence


class Decoder:
    """Decode steps of one model, whose weights stay where they are."""

    def __init__(self, model: ArmdLM) -> None:
        self.native = self.is_native(model)
        self.backend = lambda sequences, *_: [torch_backend.step(model, sequences)]
        if isinstance(model, FastLM) and self.native:
            self.backend = NativeDecoder(model).steps

    @staticmethod
    def is_native(model: ArmdLM) -> bool:
        """The C backend can do it: weights are packed, and every layer has a layout it knows."""
        return isinstance(model, FastLM) and model.whole

    def steps(self, sequences: list[Sequence], seconds: float = 0.0, stop: c_int = NEVER) -> Rounds:
        """One step of each, or the part of its prefill that it is to read, and what it generated;
        in C as many more as NativeDecoder.steps says. There a long prefill is read in parts, which
        give the same bits and take less memory."""
        while self.native and (long := [s for s in sequences if not s.step and _is_long(s)]):
            self.backend(long[:1])
        return self.backend(sequences, seconds, stop)


def _is_long(sequence: Sequence) -> bool:
    """Whether a part of its prefill is to be read before the rest."""
    return sequence.n_rows > MAX_ROWS and sequence.read_at_most(MAX_ROWS // 2)
