"""Texts for the engine to write, those who hear of them, and what the library writes alone."""

import threading

import torch
from eval_models import tiny_armd

import armd
from armd.generation.api import decode, make_sequences
from armd.generation.plan import from_blanks
from armd.model.sampling import Sampling
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
            for at in event.tokens:
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
    return from_blanks(tokens, known[None], order=order)[0], Sampling(**sampling), eos


def job(index: int, hearer, **more) -> GenerationRequest:
    plan, sampling, eos = task(index)
    return GenerationRequest(plan, sampling, seeded(0, index), hearer, eos=eos, **more)


def alone(model, index: int) -> dict[int, tuple[int, float]]:
    plan, sampling, eos = task(index)
    return filled(model, plan, index, sampling, eos)


def filled(model, plan, index: int, sampling=PLAIN, eos=None):
    """What the library generates by a plan, in the order in which it does."""
    options = {"sampling": sampling, "generator": [seeded(0, index)], "eos": eos}
    (sequence,) = make_sequences(model, [plan], **options)
    for _ in decode(model, [sequence]):
        pass
    there = plan.position[plan.step_ends[0] : plan.step_ends[sequence.step]]
    drawn = [at for at in there if not plan.known[at]]
    return {at: (sequence.tokens[at], sequence.logp[at]) for at in drawn}


def packed(**changes):
    return fast.pack(tiny_armd(d_model=64, n_heads=4, **changes))
