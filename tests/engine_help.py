"""Texts for the engine to write, those who hear of them, and what the library writes alone."""

import threading

import torch
from eval_models import tiny_armd

import armd
from armd.generation.api import fill
from armd.generation.decode_plan import Course
from armd.generation.plan import from_blanks
from armd.generation.sampling import Sampling
from armd.native import packed as fast
from armd.runtime.seeds import seeded
from armd.serve.engine import GenerationRequest
from armd.serve.events import Ended, Failed, StepEvent

PLAIN = Sampling()


class Hearer:
    """Collects what the engine tells about one text."""

    def __init__(self) -> None:
        self.landed: dict[int, tuple[int, float]] = {}
        self.end: Ended | Failed | None = None
        self.over = threading.Event()
        self.begun = threading.Event()

    def __call__(self, event) -> None:
        if isinstance(event, StepEvent):
            for at in event.at:
                assert at.position not in self.landed
                self.landed[at.position] = (at.token, at.logp)
            self.begun.set()
        else:
            self.end = event
            self.over.set()


def task(index: int, vocabulary: int = 300):
    """Texts of every kind: lengths, prompts, blanks, streams, orders, sampling."""
    g = seeded("task", index)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    n = draw(6, 60)
    tokens = torch.randint(vocabulary, (1, n), generator=g)
    known = torch.arange(n) < draw(0, n - 5)
    if index % 3 == 1:
        known = torch.rand(n, generator=g) < 0.5
        known[:4] = False
    blanks = int((~known).sum())
    kinds = [
        armd.order.strided(blanks, draw(1, 4)),
        armd.order.random(blanks, generator=g),
        armd.order.masking(blanks, 5, generator=g),
    ]
    order = armd.order.completing(known, kinds[index % 3])
    sampling = [{}, {"top_p": 0.9}, {"temperature": 0.7, "repetition_penalty": 1.3}][index % 3]
    eos = 7 if index % 4 == 0 else None
    return from_blanks(tokens, known[None], order=order), Sampling(**sampling), eos


def job(index: int, hearer, **more) -> GenerationRequest:
    canvas, sampling, eos = task(index)
    return GenerationRequest(Course.of(canvas), sampling, seeded(0, index), hearer, eos=eos, **more)


def alone(model, index: int) -> dict[int, tuple[int, float]]:
    canvas, sampling, eos = task(index)
    return filled(model, canvas, index, sampling, eos)


def filled(model, canvas, index: int, sampling=PLAIN, eos=None):
    """What the library writes on a canvas, in the order in which it does."""
    found = {}
    for step in fill(model, canvas, sampling=sampling, generator=[seeded(0, index)], eos=eos):
        columns = (step.position[0], step.token[0], step.logp[0], step.drawn[0])
        for position, token, logp, drawn in zip(*(c.tolist() for c in columns), strict=True):
            if drawn:
                found[position] = (token, logp)
    return found


def packed(**changes):
    return fast.pack(tiny_armd(d_model=64, n_heads=4, **changes))
