"""The official client works unchanged, and a seed gives the text that the library gives."""

import openai
import pytest
import torch
from serving import EOS, running

import armd
from armd.runtime.seeds import generators_per_row


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


@pytest.fixture(scope="module")
def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def expected(server, prompts: list[list[int]], new: int, seed: int, **options) -> list[str]:
    """What armd.generate writes from that seed, row by row, up to the first EOS."""
    texts = []
    for row, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(seed)
        generators = generators_per_row(generator, len(prompts))[row : row + 1]
        ids = armd.generate(
            server.model,
            length=len(prompt) + new,
            prompt=[prompt],
            generator=generators,
            eos=EOS,
            **options,
        )[0, len(prompt) :].tolist()
        texts.append(server.service.tokenizer.decode(ids[: [*ids, EOS].index(EOS)]))
    return texts


def test_a_seed_gives_the_text_of_generate(server, client) -> None:
    for seed in range(4):
        answer = client.completions.create(
            model="tiny", prompt="Once", max_tokens=30, seed=seed, temperature=0.8, top_p=0.95
        )
        (text,) = expected(server, [list(b"Once")], 30, seed, temperature=0.8, top_p=0.95)
        (choice,) = answer.choices
        assert choice.text == text and answer.object == "text_completion"
        assert answer.usage.prompt_tokens == 4
        assert choice.finish_reason == (
            "length" if answer.usage.completion_tokens == 30 else "stop"
        )


def test_null_is_what_was_not_said(client) -> None:
    said = dict.fromkeys(("temperature", "top_p", "max_tokens", "n", "stop", "logprobs"))
    more = dict.fromkeys(("repetition_penalty", "streams", "order", "min_p", "top_k"))
    asked = {"model": "tiny", "prompt": "Once", "seed": 1}
    texts = {
        client.completions.create(**asked, **some).choices[0].text
        for some in ({}, {**said, "extra_body": more})
    }
    assert len(texts) == 1


def test_one_generator_for_all_rows_is_the_same_generator(server, client) -> None:
    """As a user would write it: one seed, the prompt once for each text."""
    answer = client.completions.create(
        model="tiny", prompt=[[1, 2], [3]], n=2, max_tokens=20, seed=11, extra_body={"streams": 3}
    )
    prompts = [[1, 2], [1, 2], [3], [3]]
    texts = expected(server, prompts, 20, 11, streams=3)
    assert [c.text for c in answer.choices] == texts and [c.index for c in answer.choices] == [
        0,
        1,
        2,
        3,
    ]
    both = armd.generate(
        server.model,
        length=21,
        prompt=[[3], [3]],
        generator=torch.Generator().manual_seed(5),
        eos=EOS,
    )
    answer = client.completions.create(model="tiny", prompt=[3], n=2, max_tokens=20, seed=5)
    for choice, ids in zip(answer.choices, both[:, 1:].tolist(), strict=True):
        assert choice.text == server.service.tokenizer.decode(ids[: [*ids, EOS].index(EOS)])


@pytest.mark.parametrize("streams", [1, 4])
def test_streamed_equals_whole(server, client, streams: int) -> None:
    settings = {"model": "tiny", "prompt": ["ab", "c"], "n": 2, "max_tokens": 25, "seed": 3}
    settings |= {"logprobs": 2, "extra_body": {"streams": streams}}
    whole = client.completions.create(**settings)
    texts, logp, ends = [""] * 4, [[] for _ in range(4)], [None] * 4
    usage = None
    for chunk in client.completions.create(
        **settings, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert ends[choice.index] is None
            texts[choice.index] += choice.text
            logp[choice.index] += choice.logprobs.token_logprobs
            ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert logp == [choice.logprobs.token_logprobs for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    server.at_rest()


def test_logprobs_are_the_exact_ones(server, client) -> None:
    answer = client.completions.create(
        model="tiny", prompt=[1, 2], max_tokens=10, seed=1, logprobs=3
    )
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.text_offset) == answer.usage.completion_tokens
    ids = armd.generate(
        server.model, length=12, prompt=[[1, 2]], generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        exact = armd.log_likelihood(server.model, ids, armd.order.left_to_right(12))[0, 2:]
    logp = torch.tensor(found.token_logprobs)
    torch.testing.assert_close(logp, exact[: len(logp)], rtol=0, atol=1e-4)
    for best, own in zip(found.top_logprobs, found.token_logprobs, strict=True):
        assert len(best) <= 3 and max(best.values()) >= own - 1e-12


def test_a_suffix_is_filled_up_to_with_both_sides_known(server, client) -> None:
    answer = client.completions.create(
        model="tiny", prompt="ab", suffix="yz", max_tokens=6, seed=2, n=2
    )
    known = torch.tensor([[True] * 2 + [False] * 6 + [True] * 2])
    tokens = torch.tensor([[*b"ab", *[0] * 6, *b"yz"]])
    rows = armd.infill(
        server.model,
        tokens.expand(2, -1),
        known.expand(2, -1),
        generator=torch.Generator().manual_seed(2),
    )
    texts = [server.service.tokenizer.decode(row[2:8].tolist()) for row in rows]
    assert [choice.text for choice in answer.choices] == texts


def test_stop_strings_end_a_text_before_them(server, client) -> None:
    whole = client.completions.create(model="tiny", prompt="q", max_tokens=40, seed=8)
    text = whole.choices[0].text
    stop = text[7:9]
    at = text.index(stop)
    settings = {
        "model": "tiny",
        "prompt": "q",
        "max_tokens": 40,
        "seed": 8,
        "stop": ["#none", stop],
    }
    cut = client.completions.create(**settings)
    assert cut.choices[0].text == text[:at] and cut.choices[0].finish_reason == "stop"
    chunks = list(client.completions.create(**settings, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == text[:at]
    assert chunks[-1].choices[0].finish_reason == "stop"
    echoed = client.completions.create(**settings, echo=True)
    assert echoed.choices[0].text == "q" + text[:at]
    server.at_rest()


def test_a_text_that_came_to_a_stop_string_is_counted_as_finished(server, client) -> None:
    server.at_rest()
    metrics = server.service.engine.metrics
    done, abandoned = metrics.done, metrics.abandoned
    everything = [chr(code) for code in range(32, 36)]
    for _ in range(3):
        client.completions.create(model="tiny", prompt="q", max_tokens=200, stop=everything)
    server.at_rest()
    assert (metrics.done - done, metrics.abandoned - abandoned) == (3, 0)


def test_temperature_0_is_greedy_whatever_filters_clients_send(server, client) -> None:
    answer = client.completions.create(
        model="tiny", prompt="a", max_tokens=12, temperature=0, top_p=0.5
    )
    (text,) = expected(server, [list(b"a")], 12, 0, temperature=0.0)
    assert answer.choices[0].text == text


def test_models_and_errors_as_the_client_knows_them(server, client) -> None:
    assert [card.id for card in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "armd"
    with pytest.raises(openai.NotFoundError, match="no model 'org/other' here"):
        client.models.retrieve("org/other")  # a name may have a slash
    with pytest.raises(openai.NotFoundError, match="this is tiny"):
        client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError, match="the model takes 64"):
        client.completions.create(model="tiny", prompt="x" * 65, max_tokens=20)
    with pytest.raises(openai.BadRequestError, match="streams 9"):
        client.completions.create(model="tiny", prompt="x", max_tokens=5, extra_body={"streams": 9})


def test_more_tokens_than_fit_are_cut_to_what_fits(server, client) -> None:
    """As many clients ask for by default; the text is the one of the length that fits."""
    settings = {"model": "tiny", "prompt": "x" * 50, "seed": 1, "extra_body": {"streams": 16}}
    cut = client.completions.create(**settings, max_tokens=2048)
    settings["extra_body"]["streams"] = 14
    fits = client.completions.create(**settings, max_tokens=14)
    assert cut.choices[0].text == fits.choices[0].text
    assert cut.choices[0].finish_reason == fits.choices[0].finish_reason
    assert cut.usage == fits.usage


@pytest.mark.parametrize("new", [0, 3])
@pytest.mark.parametrize("prompt", ["My text", [1, 200, 3], ["ab", "\u20ac c"]])
def test_echo_has_the_likelihood_of_the_prompt(server, client, prompt, new: int) -> None:
    settings = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": 2, "seed": 4}
    answer = client.completions.create(**settings, max_tokens=new)
    texts = prompt if isinstance(prompt[0], str) and isinstance(prompt, list) else [prompt]
    plain = client.completions.create(**settings | {"echo": False}, max_tokens=new)
    for text, choice, only in zip(texts, answer.choices, plain.choices, strict=True):
        ids = list(text.encode()) if isinstance(text, str) else text
        found, order = choice.logprobs, armd.order.left_to_right(len(ids))
        with torch.no_grad():
            exact = armd.log_likelihood(server.model, torch.tensor([ids]), order)[0]
        torch.testing.assert_close(
            torch.tensor(found.token_logprobs[: len(ids)]), exact, rtol=0, atol=1e-5
        )
        assert found.token_logprobs[len(ids) :] == only.logprobs.token_logprobs
        shown = server.service.tokenizer.decode(ids)
        assert choice.text == shown + only.text
        assert found.text_offset[0] == 0 and sorted(found.text_offset) == found.text_offset
        assert found.text_offset[len(ids) :] == only.logprobs.text_offset
        for best, own in zip(found.top_logprobs, found.token_logprobs, strict=True):
            assert max(best.values()) >= own
    chunks = list(client.completions.create(**settings, max_tokens=new, stream=True))
    for choice in answer.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        logp = [p for part in parts for p in part.logprobs.token_logprobs]
        assert logp == choice.logprobs.token_logprobs
        assert [p.finish_reason for p in parts if p.finish_reason] == [choice.finish_reason]


def test_the_most_probable_token_has_exactly_the_highest_number(server, client) -> None:
    """So that a client can tell by comparing: the greedy text's own log-probabilities are it."""
    text = client.completions.create(model="tiny", prompt="a", max_tokens=12, temperature=0)
    answer = client.completions.create(
        model="tiny", prompt="a" + text.choices[0].text, max_tokens=0, echo=True, logprobs=1
    )
    found = answer.choices[0].logprobs
    if "\ufffd" not in text.choices[0].text:
        for best, own in zip(found.top_logprobs[1:], found.token_logprobs[1:], strict=True):
            assert max(best.values()) == own


def test_a_full_queue_is_a_429_with_a_time_to_come_again() -> None:
    with running(slots=1, queue=1) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        held = threading_event(server)
        first = [client.completions.create(model="tiny", prompt="x", stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="tiny", prompt="x")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        held.set()
        assert all(list(answer) for answer in first)
        server.at_rest()


def threading_event(server):
    """Keeps the engine busy until it is set."""
    import threading

    event, begun = threading.Event(), threading.Event()

    def work():
        begun.set()
        event.wait(30)

    server.service.engine.run_exclusive(work)
    assert begun.wait(10)
    return event
