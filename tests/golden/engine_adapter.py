"""All that the golden record knows about the server's engine; adapt this file when it changes."""

import threading

import armd
from armd.generation.plan import DecodePlan, completing, plan_of
from armd.model.sampling import Sampling
from armd.serve.engine import Engine, GenerationRequest
from armd.serve.events import Ended, StepEvent

SLOTS = 4
"""Fewer than sequences: some come in while others are under way."""


class Collector:
    def __init__(self) -> None:
        self.steps, self.end, self.over = [], None, threading.Event()

    def __call__(self, event) -> None:
        if isinstance(event, StepEvent):
            self.steps.append((event.step, event.tokens))
        else:
            self.end = event
            self.over.set()


def plan_for(piece: dict) -> DecodePlan:
    """Streams as the server makes them; other orders as they are."""
    tokens, known, order = piece["tokens"], piece["known"], piece["order"]
    make = plan_of if order else completing
    order = order or armd.order.strided(known.count(False), piece["streams"])
    return make(tokens, known, order.position.tolist(), order.block.tolist())


def write(model: armd.ArmdLM, pieces: list[dict]) -> list[tuple[list, str]]:
    """All pieces, submitted together: of each its steps (index, [(position, token, logp)]) and why
    it ended. Where the most probable token is drawn, it must be the first of the top log-probs."""
    engine = Engine(model, slots=SLOTS, queue=1000, threads=1).start()
    collectors, requests = [Collector() for _ in pieces], []
    greedy = [piece["sampling"] == {"temperature": 0} for piece in pieces]
    for piece, collector, top in zip(pieces, collectors, greedy, strict=True):
        options = {"eos": piece["eos"], "top_logprobs": 2 * top}
        how = (Sampling(**piece["sampling"]), piece["generator"], collector)
        requests.append(GenerationRequest(plan_for(piece), *how, **options))
    engine.submit(requests)
    try:
        assert all(collector.over.wait(120) for collector in collectors), "the engine hangs"
    finally:
        engine.stop()
        engine.join(20)
    found = []
    for collector, top in zip(collectors, greedy, strict=True):
        assert isinstance(collector.end, Ended), collector.end
        for _, tokens in collector.steps:
            for one in tokens if top else ():
                best = one.top_logprobs[0]
                assert best.token == one.token and abs(best.logp - one.logp) < 1e-5
        steps = [
            (step, [(t.position, t.token, t.logp) for t in new]) for step, new in collector.steps
        ]
        found.append((steps, collector.end.reason))
    return found
