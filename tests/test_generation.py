"""What the loop promises: how many passes, what stays, what ends, and whose text is whose."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import case_of

import armd
from armd.data.template import parts
from armd.runtime.seeds import seeded


def model(seed: int = 1, **size) -> armd.ArmdLM:
    return case_of("random", 4, seed, double=True, n_two_stream=2, **size).model


def generators(*indices: int) -> list[torch.Generator]:
    return [seeded(0, index) for index in indices]


def test_one_stream_is_left_to_right_token_for_token() -> None:
    strided = armd.generate(model(), length=20, streams=1, generator=generators(3))
    order = armd.order.left_to_right(20)
    assert torch.equal(
        strided, armd.generate(model(), length=20, order=order, generator=generators(3))
    )
    steps = list(armd.stream(model(), length=20, generator=generators(3)))
    assert [step.position.item() for step in steps] == list(range(20))
    assert [step.token.item() for step in steps] == strided[0].tolist()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_model_calls_are_exactly_streams_and_rounds(n: int, streams: int) -> None:
    """S + ceil(n / S) - 1 passes, counted where they are made: in the last layer."""
    streams, made = min(n, streams), []
    counted = model()
    counted.layers[-1].attention_norm.register_forward_hook(lambda *_: made.append(1))
    steps = list(armd.stream(counted, length=n, streams=streams, generator=generators(0)))
    assert len(steps) == len(made) == streams + -(-n // streams) - 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.sampled_from([None, 3]))
def test_known_stays_and_blanks_are_filled(seed: int, streams: int, eos: int | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(7, (3, 15), generator=generator)
    known = torch.rand(3, 15, generator=generator) < 0.5
    known[:, :4] = False
    canvas = tokens.where(known, -1)
    filled = armd.infill(model(), canvas, known, streams=streams, eos=eos, generator=generator)
    assert torch.equal(filled[known], tokens[known])
    assert bool((filled >= 0).all()) and bool((filled < 7).all())
    positions = [
        step.position[step.drawn]
        for step in armd.stream(
            model(), tokens=canvas, known=known, streams=streams, generator=generator
        )
    ]
    assert len(torch.cat(positions)) == int((~known).sum())


@pytest.mark.parametrize("streams", [1, 3])
def test_rows_stop_at_eos(streams: int) -> None:
    """A row's text is the one without stopping, up to its first EOS; all behind it is EOS. Without
    streams that may write ahead, nothing is drawn behind it."""
    settings = {"length": 24, "prompt": [[1, 2], [3], [2, 2]], "streams": streams}
    free = armd.generate(model(), generator=generators(0, 1, 2), **settings)
    steps = list(armd.stream(model(), generator=generators(0, 1, 2), eos=2, **settings))
    text = armd.generate(model(), generator=generators(0, 1, 2), eos=2, **settings)
    for row, lengths in enumerate((2, 1, 2)):
        ends = (free[row, lengths:] == 2).nonzero().flatten()
        assert len(ends), "choose a seed at which every row ends"
        end = lengths + int(ends[0]) + 1
        assert torch.equal(text[row, :end], free[row, :end])
        assert bool((text[row, end:] == 2).all())
        if streams == 1:
            assert sum(int(step.drawn[row].sum()) for step in steps) == end - lengths
    calls = len(list(armd.stream(model(), generator=generators(0, 1, 2), **settings)))
    assert streams > 1 or len(steps) < calls


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("query", ["prefix", "mean"])
def test_a_row_is_the_same_alone_and_among_others(streams: int, query: str) -> None:
    prompt = [[], [1, 2, 3], [4], [5, 6, 0, 1, 2, 3, 4], [2, 2]]
    writer = model(query=query)
    options = {"length": 17, "streams": streams, "repetition_penalty": 1.3}
    together = armd.generate(writer, prompt=prompt, generator=generators(*range(5)), **options)
    for row, given_ids in enumerate(prompt):
        alone = armd.generate(writer, prompt=[given_ids], generator=generators(row), **options)
        assert torch.equal(alone[0], together[row])
    some = armd.generate(writer, prompt=prompt[1:4], generator=generators(1, 2, 3), **options)
    assert torch.equal(some, together[1:4])


def test_autoregressive_rows_are_the_same_alone_and_among_others() -> None:
    prompt = [[], [1, 2, 3], [4]]
    writer = model(query="shift")
    together = armd.generate(writer, length=12, prompt=prompt, generator=generators(0, 1, 2))
    for row, given_ids in enumerate(prompt):
        alone = armd.generate(writer, length=12, prompt=[given_ids], generator=generators(row))
        assert torch.equal(alone[0], together[row])


def test_one_generator_gives_the_same_texts_again() -> None:
    first, again, other = (
        armd.generate(
            model(), length=20, prompt=[[1], [2]], generator=torch.Generator().manual_seed(seed)
        )
        for seed in (5, 5, 6)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_an_empty_prompt_is_no_prompt() -> None:
    empty = torch.empty(1, 0, dtype=torch.long)
    texts = [
        armd.generate(model(), length=9, prompt=prompt, generator=generators(0))
        for prompt in (None, empty, [[]])
    ]
    assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])
    assert texts[0].shape == (1, 9)


def test_a_model_in_training_goes_back_to_training() -> None:
    writer = model().train()
    armd.generate(writer, length=3, generator=generators(0))
    assert writer.training
    next(iter(armd.stream(writer, length=3, generator=generators(0))))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": 2, "prompt": [[1, 2, 3]]}, "raise length or cut the prompt"),
        ({"length": 0}, "no room"),
        ({"length": 65}, "max_length 64"),
        ({"length": 8, "streams": 0}, "streams 0"),
        ({"length": 8, "streams": 9}, "streams 9"),
        ({"length": 8, "prompt": [[7]]}, "vocabulary of 7"),
        ({"length": 8, "prompt": [[-1]]}, "vocabulary of 7"),
        ({"length": 8, "prompt": [1, 2]}, "one row a text"),
        ({"length": 8, "prompt": [["a"]]}, "one row a text"),
        ({"length": 8, "prompt": "abc"}, r"armd.load\(MODEL\)"),
        ({"length": 2.5}, "no room"),
        ({"length": 8, "generator": 5}, "manual_seed"),
        ({"length": 8, "temperature": 0.0, "top_p": 0.9}, "temperature 0"),
        ({"length": 8, "prompt": [[1], [2]], "generator": generators(1)}, "one for each"),
        ({"length": 8, "streams": 2, "order": armd.order.random(8)}, "either order or streams"),
        ({"length": 8, "order": armd.order.random(7)}, "order is for 7"),
        ({"length": 8, "eos": [1, 2]}, r"one token id, not \[1, 2\]"),
        ({"length": 8, "eos": "a"}, "one token id, not 'a'"),
        ({"length": 8, "eos": 1.0}, "one token id, not 1.0"),
        ({"length": 8, "eos": True}, "one token id, not True"),
    ],
)
def test_bad_input_names_the_fix(unchecked: None, options: dict, said: str) -> None:
    with pytest.raises(armd.ArmdError, match=said):
        armd.generate(model(), **options)
    with pytest.raises(armd.ArmdError, match=said):
        list(armd.stream(model(), **options))


def test_what_to_fill_must_be_said_once_and_have_blanks(unchecked: None) -> None:
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(armd.ArmdError, match="nothing is blank"):
        armd.infill(model(), tokens, torch.ones(1, 4, dtype=torch.bool))
    for wrong in ({"tokens": tokens}, {"known": tokens > 0}, {}):
        with pytest.raises(armd.ArmdError, match="say what to fill"):
            next(iter(armd.stream(model(), **wrong)))
    both = {"tokens": tokens, "known": tokens > 0, "length": 4}
    with pytest.raises(armd.ArmdError, match="say what to fill"):
        next(iter(armd.stream(model(), **both)))


def test_half_precision_writes_on_a_cpu() -> None:
    model = armd.ArmdLM(
        armd.ArmdConfig(vocab_size=31, d_model=32, n_layers=2, n_heads=2, max_length=16)
    ).eval()
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        exact, half = model(tokens).logits, model.bfloat16()(tokens).logits
    assert half.dtype == torch.bfloat16
    assert float((half.float() - exact).abs().max()) < 0.1 * float(exact.abs().max())
    assert armd.generate(model, length=12, streams=3).shape == (1, 12)


def test_a_template_is_read_in_one_go() -> None:
    # from each of so many spaces anew, this would take hours
    assert parts(" " * 300_000 + "x  __y ____") == [" " * 300_000 + "x ", "y", ""]
    assert parts(" __ ") == ["", " "]
