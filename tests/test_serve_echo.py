"""Texts of any bytes are read at a bounded cost, and large answers are written off the event loop:
nobody else waits for either."""

import json
import random
import threading
from itertools import chain

import httpx
import pytest
from eval_models import tokenizer
from hypothesis import given
from hypothesis import strategies as st
from serving import running, writer
from tokenizers import Tokenizer, decoders, models

from armd.generation.outputs import TokenOutput
from armd.serve import completion_state, completions
from armd.serve.detokenizer import CharacterStream, IncrementalText, ServerTokenizer, overlap

LENGTH = 1024
EURO, SMILE = list("€".encode()), list("😀".encode())


class Counted(ServerTokenizer):
    """Remembers the most tokens that were decoded together."""

    most = 0

    def decode(self, ids):
        self.most = max(self.most, len(ids))
        return super().decode(ids)


def read(reader: ServerTokenizer, ids: list[int]) -> IncrementalText:
    text = IncrementalText(reader, 0)
    for at, token in enumerate(ids):
        text.add([TokenOutput(at, token, 0.0, ())])
    text.flush()
    return text


def fallback() -> Tokenizer:
    """As Llama's: a run of bytes that is no text as a whole reads as so many signs."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256, "▁b": 257, "▁": 258}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="▁"))
    last = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), *last])  # type: ignore[list-item]
    return made


def texts_of_bytes() -> list[list[int]]:
    draw, signs = random.Random(1), "\ufffd".encode()
    fixed = [[0x80] * 400, [0xE2] * 400, list(signs * 200), [0xF0, 0x9F, 0x98] * 99, SMILE * 99]
    parts = [EURO, SMILE, [0x80], [0xF0, 0x9F], [0xE2, 0x82], [97], list(signs)]
    mixed = [[*chain(*draw.choices(parts, k=200))] for _ in range(20)]
    return [*fixed, *mixed, [draw.randrange(128, 256) for _ in range(400)]]


@pytest.mark.parametrize("ids", texts_of_bytes())
def test_any_bytes_read_as_they_are_decoded_whole_a_few_at_a_time(ids: list[int]) -> None:
    reader = Counted(tokenizer(), LENGTH)
    found = read(reader, ids)
    assert reader.most <= 24
    assert found.text == reader.decode(ids)
    assert found.offsets == sorted(found.offsets) and len(found.offsets) == len(ids)


def test_bytes_that_change_how_earlier_ones_read_break_nothing() -> None:
    reader = Counted(tokenizer(), LENGTH)
    reader.backend = fallback()
    assert read(reader, [*EURO, 257, 256, *SMILE, *EURO, 257]).text == "€ ba😀€ b"
    assert read(reader, [*EURO, 0x80, 256]).text.startswith("€")
    for ids in texts_of_bytes():
        assert read(reader, [*ids, 257]).text.endswith(" b")
    assert reader.most <= 24


def test_tokens_without_a_text_wait_for_nothing() -> None:
    """Such as those that a model has and its tokenizer has not."""
    reader = Counted(tokenizer(), LENGTH)
    assert read(reader, [300] * 200 + [97] + [300] * 200 + EURO).text == "a€"
    assert reader.most <= 24


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    """Also of tokens that are a part of a character, which their names tell apart."""
    for backend in (tokenizer().backend, fallback()):
        reader = ServerTokenizer(tokenizer(), LENGTH)
        reader.backend = backend
        ids = [*b"a", *EURO, *SMILE, *"\ufffd".encode()]
        assert b"".join(map(reader.bytes, ids)) == bytes(ids)
        parts = [reader.name(token) for token in (*EURO, *SMILE)]
        assert parts[0] == "bytes:\\xe2" and len(set(parts)) == len({*EURO, *SMILE})
        assert reader.name(97) == "a"


def test_nothing_waits_behind_a_stop_string() -> None:
    text = IncrementalText(ServerTokenizer(tokenizer(), LENGTH), 0, ("b",))
    ids = [97, 98, 0xE2, 0x82]
    text.add([TokenOutput(at, token, 0.0, ()) for at, token in enumerate(ids)])
    text.flush()
    assert text.text == "a" and text.stopped


def test_tokens_are_told_with_their_text() -> None:
    """Those of a stop string that has begun wait, as its text does, and are never told."""
    reader = ServerTokenizer(tokenizer(), LENGTH)
    for ids in (b"abcabdxx", b"aabbabd", b"ababab"):
        text, told, shown = IncrementalText(reader, 0, ("abd",)), [], ""
        for at, token in enumerate(ids):
            text.add([TokenOutput(at, token, 0.0, ())])
            new, part = text.take_new(last=text.stopped)
            told, shown = told + text.read[part], shown + new
            assert len(told) == len(shown)
        new, part = text.take_new(last=True)
        assert shown + new == text.text and told + text.read[part] == text.read


@pytest.fixture(scope="module")
def server():
    with running(writer(max_length=LENGTH)) as made:
        yield made


def asked(server, **more) -> httpx.Response:
    body = {"prompt": [128] * LENGTH, "echo": True, "max_tokens": 0, "n": 4} | more
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_echo_is_read_once_and_answered_off_the_event_loop(
    server, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, dumping, step, dumped = [], [], CharacterStream.step, completions.dumped

    def counted(self, token: int) -> str:
        reading.append(threading.current_thread())
        return step(self, token)

    def dump(content) -> bytes:
        text = json.dumps(content)
        signs = text.count("\\ufffd") + text.count("bytes:")  # as they read, and their names
        dumping.append((threading.current_thread(), signs))
        return dumped(content)

    monkeypatch.setattr(CharacterStream, "step", counted)
    monkeypatch.setattr(completions, "dumped", dump)
    found = asked(server, logprobs=5, stream=stream)
    assert found.status_code == 200 and found.text.count('"finish_reason":"length"') == 4
    assert len(reading) == LENGTH
    ours = asked_loop(server)
    assert ours not in reading and ours not in {thread for thread, _ in dumping}
    whole = LENGTH + LENGTH  # the text and its tokens; those that rival come on top
    assert sum(signs >= whole for _, signs in dumping) == 4  # a choice at a time


def asked_loop(server) -> threading.Thread:
    """The thread of the event loop."""
    found: list[threading.Thread] = []
    done = threading.Event()

    def look() -> None:
        found.append(threading.current_thread())
        done.set()

    server.service.loop.call_soon_threadsafe(look)
    assert done.wait(20)
    return found[0]


def test_an_echo_beyond_any_use_is_refused_before_it_is_made(server, monkeypatch) -> None:
    monkeypatch.setattr(completion_state, "MOST_ECHOED", 4 * LENGTH * 3)
    assert asked(server, logprobs=2).status_code == 200
    for more in ({"logprobs": 3}, {"n": 6, "logprobs": 2}, {"prompt": [[1] * LENGTH] * 4}):
        refused = asked(server, **{"logprobs": 2, "n": 4} | more)
        assert refused.status_code == 400 and "fewer" in refused.json()["error"]["message"]


def test_the_answer_is_the_same_json_whole_or_choice_by_choice(server) -> None:
    found = asked(server, prompt=["ab", '"choices":[]'], max_tokens=3, n=2, logprobs=1).json()
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["choices"][2]["text"].startswith('"choices":[]')
    assert found["usage"]["prompt_tokens"] == 14


def test_no_text_is_encoded_on_the_event_loop() -> None:
    """A tokenizer's patterns may take minutes for a short text."""
    asked = {
        "completions": {"prompt": "a", "max_tokens": 1},
        "infill": {"text": "a ____", "blank_length": 1},
        "score": {"text": "ab"},
        "tokenize": {"text": "ab"},
    }
    with running() as server:
        reader, seen = server.service.tokenizer, []
        encode = reader.encode

        def watched(*args):
            seen.append(threading.current_thread().name)
            return encode(*args)

        reader.encode = watched
        for route, body in asked.items():
            before = len(seen)
            assert httpx.post(f"{server.url}/v1/{route}", json=body, timeout=60).status_code == 200
            assert len(seen) > before
        assert not [name for name in seen if name.startswith(("Thread-", "MainThread"))], seen


def test_the_letters_of_an_echo_are_bounded_as_its_tokens_are(server, monkeypatch) -> None:
    monkeypatch.setattr(completion_state, "MOST_LETTERS", 1000)
    body = {"prompt": "a" * 100, "max_tokens": 0, "echo": True, "n": 11}
    found = httpx.post(server.url + "/v1/completions", json=body)
    assert found.status_code == 400 and "echo" in found.json()["error"]["message"]
    assert httpx.post(server.url + "/v1/completions", json=body | {"n": 10}).status_code == 200


@pytest.mark.parametrize("new", [0, 2])
def test_a_request_does_not_wait_for_its_own_place_in_the_queue(new: int) -> None:
    """Streamed, its texts wait already when its prompts are scored."""
    body = {"prompt": [[97, 98], [99, 100]], "max_tokens": new, "echo": True, "logprobs": 0}
    with running(slots=1, queue=1) as server:
        url = server.url + "/v1/completions"
        whole = httpx.post(url, json=body | {"seed": 1}, timeout=60).json()["choices"]
        streamed = httpx.post(url, json=body | {"seed": 1, "stream": True}, timeout=60).text
    events = [json.loads(part[6:]) for part in streamed.split("\n\n")[:-2]]
    texts = {0: "", 1: ""}
    for event in events:
        assert "error" not in event
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole}


@given(st.text("ab", max_size=8), st.text("ab", min_size=1, max_size=5))
def test_what_may_begin_a_stop_string_waits_and_no_more(text: str, stop: str) -> None:
    sizes = [n for n in range(min(len(stop) - 1, len(text)) + 1) if text.endswith(stop[:n])]
    assert overlap(text, stop) == max(sizes)
