"""A script: a filling whose rows are written by a pen, with hardly a tensor between two steps."""

from dataclasses import replace

import torch

from ..errors import ArmdError
from ..native.packed import FastLM
from .decode_plan import Course
from .forward import advance_together
from .kv_cache import Mark
from .native_step import Line, Pen
from .ragged_layers import FEW
from .sampling import NO_NUMBERS
from .state import Filling, Step


class Script:
    """The rows of a filling as lines. The filling stays the one who knows what is there."""

    def __init__(self, model: FastLM, filling: Filling) -> None:
        self.filling, self.pen, cache = filling, Pen(model, filling.cache), filling.cache
        cache.mark = replace(cache.mark, state=cache.mark.state.clone())  # it grows in place
        canvas, choice = filling.canvas, filling.sampling.choice
        chances = filling.uniform[:, :-1].tolist()
        self.lines = [
            Line(cache, Course.of(canvas, row), chances[row], choice, row=row)
            for row in range(len(chances))
        ]

    @property
    def few(self) -> bool:
        """The next pass has few rows of each text, as layer.c is made for."""
        return all(line.rows <= FEW for line in self.lines if line.step < line.steps)

    def lend(self) -> None:
        """Leave the cache as a pass of the filling's own takes it; a pen leaves no marks."""
        cache, index, ends = self.filling.cache, self.filling.index, self.filling.canvas.ends
        if index:
            context, query = ends[:, index - 1 : index + 1].amax(0).tolist()
            cache.mark = Mark(context + 1, query, cache.mark.state)

    def follow(self) -> None:
        """Stand where the filling stands, after a pass of its own."""
        for line, text in zip(self.lines, self.filling.text[:, :-1].tolist(), strict=True):
            line.tokens[:] = text
            line.go(min(self.filling.index, line.steps))
            line.grow()

    def step(self) -> Step:
        """One stroke."""
        self.filling.turn()
        going = [line.step < line.steps for line in self.lines]
        self.pen.write([line for line, goes in zip(self.lines, going, strict=True) if goes])
        if any(line.told.broken for line in self.lines):
            raise ArmdError(NO_NUMBERS)
        wanted = [line.last if goes else [] for line, goes in zip(self.lines, going, strict=True)]
        width = self.filling.at.shape[1]
        tokens, logps = [], []
        for line, at in zip(self.lines, wanted, strict=True):
            padding = [0] * (width - len(at))
            tokens.append([*(line.tokens[p] for p in at), *padding])
            logps.append([*(line.logp[p] for p in at), *padding])
        return self.filling.put(torch.tensor(tokens), torch.tensor(logps, dtype=torch.float64))


def script_of(filling: Filling) -> Script | None:
    """None where C cannot write it: weights that are not packed, another query, a penalty."""
    model = filling.model
    if not isinstance(model, FastLM) or not model.whole or filling.sampling.choice is None:
        return None
    return Script(model, filling)


def step_of(filling: Filling, script: Script | None) -> Step:
    """One pass of the model, and what it draws."""
    if script is not None:
        if script.few:
            return script.step()
        script.lend()
    model = filling.model
    (rows,) = advance_together(model, [filling.part()])
    step = filling.take(model.logits(filling.asked(rows)))
    if script is not None:
        script.follow()
    return step
