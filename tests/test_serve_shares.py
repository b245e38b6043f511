"""Laws: clients whose texts are written together have equal numbers of steps, whoever was away;
and keep half of their speed beside those who read long prompts."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from armd.model.sampling import Sampling
from armd.serve.requests import GenerationRequest, ScheduledRequest
from armd.serve.shares import (
    CLIENT_GAP,
    EXPENSIVE_STEP,
    MAX_CLIENTS,
    MAX_CREDIT,
    MAX_LEAD,
    NOTICEABLE,
    SHORT_STEP,
    ClientShares,
    PrefillBudget,
)

PLAIN = Sampling()
SHORT = SHORT_STEP / 4


def entry(client: object, *, sampling: Sampling = PLAIN, top: int = 0) -> ScheduledRequest:
    never = cast(Any, None)
    request = GenerationRequest(never, sampling, never, never, top_logprobs=top)
    return ScheduledRequest(request, 0.0, object(), client)


class Clocked(ClientShares):
    """Its passes take the time they are said to take."""

    now = 0.0

    def passes(
        self, active: list[ScheduledRequest], count: int, seconds: float = SHORT, each: int = 1
    ) -> dict[object, int]:
        """In how many passes each client took part; none is without anybody."""
        taken: dict[object, int] = {one.client: 0 for one in active}
        for _ in range(count):
            present = self.present(active, self.now)
            assert present
            self.took(present, each, seconds)
            self.now += each * seconds
            for client in {one.client for one in present}:
                taken[client] += each
        return taken


def test_clients_who_stay_take_part_in_every_pass() -> None:
    active = [entry(name) for name in "abcde"]
    assert set(Clocked().passes(active, 300).values()) == {300}


@pytest.mark.parametrize("each", [1, 8])
def test_a_client_that_ran_alone_meanwhile_gets_no_more_steps(each: int) -> None:
    """Four texts end together, and for a while a fifth client has the model for itself."""
    turns, total = Clocked(), dict.fromkeys("abcde", 0)
    for _ in range(20):
        for names, count in (("abcde", 64), ("e", 24)):
            found = turns.passes([entry(n) for n in names], count // each, each=each)
            total = {name: total[name] + found.get(name, 0) for name in total}
    assert max(total.values()) - min(total.values()) <= MAX_LEAD + 24 + each
    alone = 64 * 20 / (64 * 20 + 24 * 20)
    assert alone < 0.75 < min(total.values()) / max(total.values())


@pytest.mark.parametrize(("alone", "missed"), [(50, 50), (75, MAX_CREDIT), (1000, 0)])
def test_the_credit_of_a_returning_client_is_limited(alone: int, missed: int) -> None:
    """The other one misses no more than this, and nothing for who was away for long."""
    turns, both = Clocked(), [entry("stays"), entry("returns")]
    turns.passes(both, 3)
    turns.passes(both[:1], alone)
    assert (alone * SHORT < CLIENT_GAP) == bool(missed)
    assert turns.passes(both, 1000) == {"stays": 1000 - missed, "returns": 1000}


@pytest.mark.parametrize("connections", [2, 40])
def test_connections_used_in_turn_have_no_more_than_one(connections: int) -> None:
    """A long text beside short ones, two at a time, of two clients or of many in turn."""
    turns, had = Clocked(), 0
    for round in range(50):
        pair = [entry((2 * round + k) % connections) for k in range(2)]
        had += turns.passes([entry("long"), *pair], 60)["long"]
    assert had == 50 * 60


def test_a_new_client_takes_nothing_that_was_before_it() -> None:
    turns = Clocked()
    turns.passes([entry("old")], 100)
    assert turns.passes([entry("old"), entry("new")], 100) == {"old": 100, "new": 100}


@pytest.mark.parametrize("dear", [{"top": 5}, {"sampling": Sampling(repetition_penalty=1.3)}])
def test_a_client_that_makes_steps_longer_gets_fewer(dear: dict[str, Any]) -> None:
    active = [entry("plain"), entry("dear", **dear)]
    found = Clocked().passes(active, 3000)
    assert found["plain"] == 3000 and found["dear"] == pytest.approx(
        3000 / EXPENSIVE_STEP, abs=MAX_LEAD
    )
    assert Clocked().passes(active[1:], 300) == {"dear": 300}


def test_several_texts_of_a_client_count_as_one() -> None:
    active = [entry("many") for _ in range(6)] + [entry("one")]
    assert Clocked().passes(active, 100) == {"many": 100, "one": 100}


def test_in_long_steps_no_client_pauses() -> None:
    """A row more costs little there, and who rests would lose much."""
    turns, active = Clocked(), [entry("plain"), entry("dear", top=1)]
    assert turns.passes(active, 100, seconds=SHORT_STEP) == {"plain": 100, "dear": 100}


def test_clients_are_forgotten() -> None:
    turns = Clocked()
    for number in range(2 * MAX_CLIENTS):
        turns.passes([entry(number)], 1)
    assert len(turns.steps) == len(turns.seen) == MAX_CLIENTS
    turns.passes([entry(number) for number in range(2 * MAX_CLIENTS)], 2)


def reader(steps: int) -> ScheduledRequest:
    """Who has taken so many steps; none: a prompt is being read."""
    made = entry(object())
    made.sequence = cast(Any, SimpleNamespace(step=steps))
    return made


def passes_after(long: float, plain: float, *, beside: int = 1) -> int:
    """How many passes of `plain` seconds there are between two that read parts of a prompt and take
    `long` seconds, beside so many texts being written."""
    reading, entries = PrefillBudget(), [reader(0), *(reader(3) for _ in range(beside))]
    if beside:
        reading.took([3] * beside, 1, plain)
    assert reading.allowed(entries) == entries
    reading.took([0] + [3] * beside, 1, long)
    for count in range(10**6):
        taken = reading.allowed(entries)
        if taken == entries:
            return count
        assert taken == entries[1:]
        reading.took([3] * beside, 1, plain)
    raise AssertionError("the prompt is never read")


@pytest.mark.parametrize("beside", [1, 5])
def test_beside_prompts_texts_keep_half_of_their_speed(beside: int) -> None:
    """Passes are of 1/64 s, which sum up exactly; a text has a step in each, also in those that
    read."""
    for longer in (2, 8, 64):
        steps = 1 + passes_after(longer / 64, 1 / 64, beside=beside)
        seconds = (longer + steps - 1) / 64
        assert steps == longer and steps >= 0.5 * seconds * 64


def test_prefill_does_not_wait_where_no_sequence_gains() -> None:
    assert passes_after(1.0, 0.1, beside=0) == 0
    assert passes_after(SHORT + NOTICEABLE / 2, SHORT) == 0


def test_prefill_goes_on_when_the_running_sequences_have_ended() -> None:
    reading, prompt, text = PrefillBudget(), reader(0), reader(3)
    reading.took([0, 3], 1, 1.0)
    assert reading.allowed([prompt, text]) == [text] and reading.allowed([prompt]) == [prompt]


def test_prefill_without_running_sequences_creates_no_debt() -> None:
    """Texts that share a prompt begin together, once it is read."""
    reading, entries = PrefillBudget(), [reader(0), reader(1)]
    reading.took([0], 1, 1.0)
    assert reading.allowed(entries) == entries
