"""Scores are exact whoever waits beside them, share passes, and take turns with generation."""

import threading
from concurrent.futures import Future

import pytest
import torch
from serving import writer

import armd
from armd.generation.plan import from_prompts
from armd.model.sampling import Sampling
from armd.runtime.seeds import seeded
from armd.serve import score_batches, shares
from armd.serve.engine import Engine, GenerationRequest, QueueFull, ShuttingDown
from armd.serve.events import Ended
from armd.serve.score_batches import PartClock, ScoreJob, ScoreQueue, score_texts


def jobs() -> list[ScoreJob]:
    """Texts of unlike lengths, in unlike orders."""
    made = []
    for n in (1, 7, 20, 64):
        for order in (armd.order.left_to_right(n), armd.order.random(n, generator=seeded(n))):
            tokens = torch.randint(257, (n,), generator=seeded(n, "tokens")).tolist()
            made.append(ScoreJob(tokens, order, top_logprobs=n % 3))
    return [*made, ScoreJob([3, 4, 5, 6], armd.order.strided(4, 2))]


def test_a_text_has_its_own_likelihood_whatever_is_scored_beside_it() -> None:
    model, wanted = writer(), jobs()
    for job, found in zip(wanted, score_texts(model, wanted), strict=True):
        with torch.no_grad():
            exact = armd.log_likelihood(model, torch.tensor([job.tokens]), job.order)[0]
        exact = exact[job.order.inverse()]
        torch.testing.assert_close(torch.tensor(found.logp), exact, rtol=0, atol=1e-5)
        assert all(len(top) == job.top_logprobs for top in found.top)
        for own, token, top in zip(found.logp, job.tokens, found.top, strict=True):
            assert dict(top).get(token, own) == own


@pytest.fixture
def engine():
    made = Engine(writer(), slots=2).start()
    yield made
    made.stop()
    assert made.join(20)


def held(engine: Engine) -> threading.Event:
    """Keeps the engine busy until it is set."""
    go, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(20)

    engine.run_exclusive(work)
    assert begun.wait(20)
    return go


def test_texts_that_wait_share_a_pass(engine: Engine, monkeypatch) -> None:
    passes, hidden = [], engine.model.hidden
    monkeypatch.setattr(
        engine.model,
        "hidden",
        lambda tokens, order: passes.append(len(tokens)) or hidden(tokens, order),
    )
    engine.scores.tokens_per_second = 1e9  # all fit into a turn
    go = held(engine)
    futures = [engine.score(job) for job in jobs()]
    futures[2].cancel()  # its client left
    go.set()
    for number, future in enumerate(futures):
        assert future.cancelled() if number == 2 else future.result(20).logp
    assert passes == [len(futures) - 1]


def test_scoring_without_running_sequences_creates_no_debt() -> None:
    """Else a minute of scoring would be followed by four in which nothing is scored."""
    found = shares.ScoreBudget()
    found.scored(60.0, decoding=False)
    assert found.debt == 0
    found.scored(1.0, decoding=True)
    found.scored(1.0, decoding=True)
    assert found.debt == 2 * shares.DECODE_PER_SCORE
    found.decoded(0.5)  # there are writers, though none at this very moment
    found.scored(0.001, decoding=False)
    assert found.debt > shares.DECODE_PER_SCORE
    found.last_step -= 100.0
    found.scored(1.0, decoding=False)
    assert found.debt == 0


def test_who_left_has_no_place_in_the_queue(engine: Engine) -> None:
    go, most = held(engine), engine.queue + engine.slots
    futures = [engine.score(ScoreJob([3], armd.order.left_to_right(1))) for _ in range(most)]
    with pytest.raises(QueueFull):
        engine.check(1)
    for future in futures:
        future.cancel()
    engine.check(most)
    engine.score(last := ScoreJob([4], armd.order.left_to_right(1)))
    assert list(engine.scores.waiting) == [last]
    go.set()
    assert last.future.result(20).logp


def scores_beside_a_text(engine: Engine, plan, listen, told: list[str], over) -> int:
    """Have all jobs scored and one text generated, all waiting when the engine begins; `told` gets
    "score" for each job. Returns how many jobs there are."""
    go = held(engine)
    futures = [engine.score(job) for job in jobs()]
    for future in futures:
        future.add_done_callback(lambda _: told.append("score"))
    engine.submit([GenerationRequest(plan, Sampling(), seeded(0), listen)])
    go.set()
    assert over.wait(20) and all(future.result(20).logp for future in futures)
    return len(futures)


def test_generation_goes_on_between_scores(engine: Engine, monkeypatch) -> None:
    """However many texts wait to be scored: with a share this large, one is scored while a text is
    generated, and the others after it."""
    monkeypatch.setattr(shares, "DECODE_PER_SCORE", 1e9)
    monkeypatch.setattr(score_batches, "TURN_SECONDS", 1e9)
    engine.scores.tokens_per_second = 0.0  # one text a turn
    told, over = [], threading.Event()

    def listen(event) -> None:
        told.append(type(event).__name__)
        over.set() if isinstance(event, Ended) else None

    (plan,) = from_prompts(None, length=40)
    scores_beside_a_text(engine, plan, listen, told, over)
    assert told.index("Ended") == 41 and told[:41].count("score") == 1


def test_a_client_between_two_texts_is_not_passed_over(engine: Engine, monkeypatch) -> None:
    """Where passes are owed, the moment between two texts of a client is no turn of scoring: the
    next text comes first, and scoring goes on once nobody writes."""
    monkeypatch.setattr(shares, "DECODE_PER_SCORE", 1e9)
    monkeypatch.setattr(score_batches, "TURN_SECONDS", 1e9)
    monkeypatch.setattr(shares, "CLIENT_GAP", 5.0)
    engine.scores.tokens_per_second = 0.0  # one text a turn
    told, over = [], threading.Event()
    (plan,) = from_prompts(None, length=4)

    def listen(event) -> None:
        if isinstance(event, Ended):
            told.append("text")
            if told.count("text") < 3:
                engine.submit([GenerationRequest(plan, Sampling(), seeded(0), listen)])
            else:
                monkeypatch.setattr(shares, "CLIENT_GAP", 0.0)
                over.set()

    count = scores_beside_a_text(engine, plan, listen, told, over)
    assert told[:4] == ["score", "text", "text", "text"] and told.count("score") == count


def test_others_have_their_turns_in_the_middle_of_a_text(engine: Engine, monkeypatch) -> None:
    """A text that takes longer to score than a turn: one that came later is written meanwhile, and
    both are as they would be alone."""
    monkeypatch.setattr(score_batches, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(shares, "DECODE_PER_SCORE", 1e9)
    (plan,) = from_prompts(None, length=12)
    told, over, hidden = [], threading.Event(), engine.model.hidden

    def listen(event) -> None:
        told.append(event)
        over.set() if isinstance(event, Ended) else None

    def begun(tokens, order):
        engine.submit([GenerationRequest(plan, Sampling(), seeded(0), listen)])
        found = hidden(tokens, order)
        assert isinstance(told[-1], Ended)  # before the scores are there
        return found

    monkeypatch.setattr(engine.model, "hidden", begun)
    job = jobs()[-2]
    found = engine.score(job).result(20)
    monkeypatch.setattr(engine.model, "hidden", hidden)
    assert over.is_set() and found == score_texts(engine.model, [job])[0]
    written = [one.token for event in told[:-1] for one in event.tokens]
    assert written == armd.generate(engine.model, length=12, generator=[seeded(0)])[0].tolist()
    assert not any(part._forward_pre_hooks for part in engine.model.modules())


def test_a_text_of_a_request_under_way_is_refused_by_an_engine_that_has_ended() -> None:
    """It has its place in the queue, but nobody would score it."""
    engine = Engine(writer(), slots=2).start()
    engine.stop()
    assert engine.join(20)
    with pytest.raises(ShuttingDown):
        engine.score(jobs()[0], admitted=True)


def test_a_server_that_ends_does_not_finish_a_long_text(engine: Engine, monkeypatch) -> None:
    monkeypatch.setattr(score_batches, "TURN_SECONDS", 0.0)
    hidden = engine.model.hidden
    monkeypatch.setattr(
        engine.model, "hidden", lambda *given: engine.stop() or hidden(*given), raising=True
    )
    with pytest.raises(ShuttingDown):
        engine.score(jobs()[-2]).result(20)


def scored_in_the_middle(
    engine: Engine, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The lengths of texts in the order in which their scores are there, if all but the first come
    while the first is being scored."""
    monkeypatch.setattr(score_batches, "TURN_SECONDS", 0.0)
    hidden, told, waiting = engine.model.hidden, [], list(lengths[1:])
    futures: list[Future] = []

    def add(n: int) -> None:
        job = ScoreJob([n] * n, armd.order.left_to_right(n))
        job.future.add_done_callback(lambda _: told.append(n))
        futures.append(engine.score(job))

    def begun(tokens, order):
        while waiting:
            add(waiting.pop(0))
        return hidden(tokens, order)

    monkeypatch.setattr(engine.model, "hidden", begun)
    go = held(engine)
    add(lengths[0])
    go.set()
    futures[0].result(20)
    found = [future.result(20) for future in futures]
    monkeypatch.setattr(engine.model, "hidden", hidden)
    for n, scores in zip(lengths, found, strict=True):
        job = ScoreJob([n] * n, armd.order.left_to_right(n))
        assert scores == score_texts(engine.model, [job])[0]
    assert not engine.scores.under_way
    return told


@pytest.mark.parametrize("speed", [0.0, 1e9], ids=["unknown", "known"])
def test_short_texts_are_scored_in_the_middle_of_a_long_one(
    engine: Engine, speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest first, before long ones that came earlier; those do not come in between. All
    have the bits they have alone."""
    engine.scores.tokens_per_second = speed
    told = scored_in_the_middle(engine, [64, 60, 20, 3], monkeypatch)
    assert told.index(3) < told.index(64) < told.index(60)


class Timed(ScoreQueue):
    """A pass of 64 tokens that is under way: what it lends, and what it had, as it is said."""

    def __init__(self, lengths: list[int], *, spent: float, lent: float = 0.0) -> None:
        super().__init__()
        self.tokens_per_second = 100.0
        self.waiting.extend(ScoreJob([1] * n, armd.order.left_to_right(n)) for n in lengths)
        self.under_way = [clock := PartClock(lambda _: None, 64)]
        clock.spent, clock.lent = spent, lent

    def lengths(self) -> list[int]:
        return [len(job.tokens) for job in self.take()]


def test_a_text_waits_for_as_long_as_it_takes_and_the_long_one_goes_on() -> None:
    """At 100 tokens a second. Time that was lent does not count: a long text has its half, however
    many short ones come."""
    assert Timed([20, 5], spent=0.06).lengths() == [5]
    assert Timed([20], spent=0.19).lengths() == []
    assert Timed([20], spent=0.21).lengths() == [20]
    assert Timed([33], spent=100.0).lengths() == []
    assert Timed([5], spent=0.5, lent=0.46).lengths() == []
    assert Timed([5], spent=0.5, lent=0.44).lengths() == [5]


def test_what_is_scored_in_the_middle_counts_as_lent() -> None:
    queue = Timed([], spent=1.0)
    outer = queue.under_way[0]
    queue.run(writer(), [ScoreJob([1, 2], armd.order.left_to_right(2))], lambda _: None)
    assert queue.under_way == [outer] and outer.lent > 0


def test_the_oldest_text_is_next_where_none_is_under_way() -> None:
    """So none waits for ever, however many shorter ones come."""
    queue = Timed([60, 5, 5], spent=0.0)
    queue.under_way.clear()
    assert queue.lengths() == [60] and queue.lengths() == [5]
