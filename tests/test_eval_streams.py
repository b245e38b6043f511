"""What streams cost is a difference of two exact likelihoods of the same tokens."""

import json

import pytest
import torch
from eval_models import VOCABULARY, saved, tiny_armd, tiny_gpt2

import armd
from armd.errors import ArmdError
from armd.eval.streams import eval_streams, prompted


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{n} some words of text, again and again\n" for n in range(40)))
    return file


def test_after_a_prompt_the_rest_is_scored_given_it():
    # log p(rest | prompt) = log p(all, prompt first) - log p(prompt), a plain likelihood
    model, n, prompt = tiny_armd(), 24, 7
    tokens = torch.randint(0, VOCABULARY, (1, n), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        alone = armd.log_likelihood(model, tokens[:, :prompt], armd.order.left_to_right(prompt))
        for streams in (1, 3):
            found = armd.log_likelihood(model, tokens, prompted(n, prompt, streams))
            assert torch.allclose(found[:, :prompt], alone, atol=1e-5)
    after = armd.order.strided(n - prompt, 3)
    assert prompted(n, prompt, 3).position[prompt:].tolist() == (after.position + prompt).tolist()
    assert prompted(n, 0, 1).is_left_to_right


def test_the_verb_compares_streams_on_the_same_tokens(tmp_path, text, capsys):
    model, out = saved(tiny_armd(), tmp_path / "model"), tmp_path / "out.json"
    words = {"data": str(text), "windows": 3, "window": 32, "json": out}
    (found,) = eval_streams(model, streams=(1, 2, 4), **words)
    one, two, four = found["streams"]
    assert one["nats_more"] == 0 and one["times_perplexity"] == 1
    for row in (two, four):
        more = row["nats_per_token"] - one["nats_per_token"]
        assert row["nats_more"] == pytest.approx(more, abs=1e-9)
        assert row["nats_per_boundary"] * (row["streams"] - 1) == pytest.approx(more * 32)
    (again,) = eval_streams(model, streams=(4,), **words)
    assert again["streams"][0]["nats_more"] == pytest.approx(four["nats_more"], abs=1e-9)
    assert json.loads(out.read_text())["results"][0]["windows"] == 3
    (after,) = eval_streams(model, streams=(2,), prompt=8, **words)
    assert after["tokens_scored"] == 3 * 24
    assert "times S=1" in capsys.readouterr().out


def test_each_row_says_of_how_many_windows_it_is(tmp_path, text, capsys):
    """An error comes from a spread, and a single window has none."""
    model, short = saved(tiny_armd(), tmp_path / "model"), tmp_path / "short.txt"
    short.write_text(text.read_text()[:40])
    words = {"windows": 3, "window": 32, "streams": (1, 2)}
    found = eval_streams(model, data=f"{text},{short}", **words)
    assert [result["windows"] for result in found] == [3, 1]
    assert [row["error"] for row in found[1]["streams"]] == [None, None]
    said = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in said[3:7]]
    assert [row[:2] for row in rows] == [["text", "3"]] * 2 + [["short", "1"]] * 2
    assert [len(row) for row in rows] == [9, 10, 8, 9]  # blank: the error, and S=1's boundary
    assert said[-1].startswith("windows of 32 tokens") and "single window" in said[-1]
    eval_streams(model, data=str(text), **words)
    assert "\n3 windows of 32 tokens" in capsys.readouterr().out


def test_what_cannot_be_is_refused_in_one_line(tmp_path, text):
    model = saved(tiny_armd(), tmp_path / "model")
    words = {"data": str(text), "window": 32}
    for wrong, said in (
        ({"prompt": 32}, "--prompt 32"),
        ({"streams": (0,)}, "--streams"),
        ({"streams": (33,)}, "--streams"),
        ({"windows": 0}, "--windows 0"),
        ({"window": 1 << 20}, "lower --window"),
    ):
        with pytest.raises(ArmdError, match=said):
            eval_streams(model, **{**words, **wrong})
    with pytest.raises(ArmdError, match="knows one order only"):
        eval_streams(saved(tiny_gpt2(), tmp_path / "gpt2"), **words)
