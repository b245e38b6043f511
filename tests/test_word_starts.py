"""Laws: tokenizers that put a space before each text they are given, as Llama 2's and T5's do, give
no other text than was asked for where a text goes on: behind a blank, before a suffix, and in what
is written after a prompt."""

import json
import string

import httpx
import pytest
from serving import running, writer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from armd.data.template import fill_in
from armd.serve.detokenizer import CharacterStream, ServerTokenizer

JOINED = ["▁The", "▁a", "▁time", "able", "▁jumped", "▁over", "un", "▁L", "ily", ",▁"]
TEMPLATES = ["The ____ jumped over ____.", "a____, Lily", "un____able", "____ over the dog ____"]
TEMPLATES += ["____, a\n____\nable", "a\n\n____\n\nun", "0____1|2", "x ____  y", "é ____ ü."]


def vocabulary() -> dict[str, int]:
    pieces = ["<unk>", "▁", *string.printable.strip()]
    for word in JOINED:  # a word, and what leads to it, letter by letter
        pieces += [word[:end] for end in range(2, len(word) + 1)]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]  # the model knows the first of them
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def merged() -> Tokenizer:
    vocab = vocabulary()
    merges = [(piece[:-1], piece[-1]) for piece in vocab if piece[:-1] in vocab and piece[0] != "<"]
    return Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))


def spaces_back() -> decoders.Decoder:
    last = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence([decoders.Replace("▁", " "), *last])  # type: ignore[list-item]


def prepended() -> Tokenizer:
    """As Llama 2's was."""
    made = merged()
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made.normalizer, made.decoder = normalizers.Sequence(steps), spaces_back()  # type: ignore[arg-type]
    return made


def first() -> Tokenizer:
    """As Llama 2's and Mistral's are."""
    made = merged()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = spaces_back()
    return made


def unigram() -> Tokenizer:
    """As T5's, but for what it loses."""
    words = [(piece, -1.0 / len(piece)) for piece in vocabulary()]
    made = Tokenizer(models.Unigram(words, unk_id=0, byte_fallback=True))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), spaces_back()
    return made


def collapsed() -> Tokenizer:
    """As tokenizers' own sentencepiece: line breaks are spaces, and many spaces are one."""
    made = unigram()
    steps = [normalizers.Replace("\n", " "), normalizers.Replace(Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)  # type: ignore[arg-type]
    return made


KINDS = [prepended, first, unigram]


def encoder(made: Tokenizer):
    return lambda text: made.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_template_gives_is_never_changed(kind, template: str) -> None:
    made = kind()
    tokens, known = fill_in(template, encoder(made), lengths=[1])
    filled = made.token_to_id("▁a")
    text = made.decode([t if k else filled for t, k in zip(tokens, known, strict=True)])
    wanted = template.replace(" ____", " a").replace("____", " a")
    assert text == (wanted[1:] if template.startswith("____") else wanted)


@pytest.mark.parametrize("template", TEMPLATES[:4])
def test_a_line_break_that_is_a_space_is_no_anchor(template: str) -> None:
    made = collapsed()
    tokens, known = fill_in(template, encoder(made), lengths=[1])
    filled = made.token_to_id("▁a")
    text = made.decode([t if k else filled for t, k in zip(tokens, known, strict=True)])
    assert text.strip() == template.replace(" ____", " a").replace("____", " a").strip()


def test_another_mark_leaves_underscores_alone() -> None:
    tokens, known = fill_in(
        "__init__(self): [MASK][MASK]",
        lambda text: list(text.encode()),
        lengths=[2, 3],
        mark="[MASK]",
    )
    assert bytes(t for t, k in zip(tokens, known, strict=True) if k) == b"__init__(self):"
    assert known.count(False) == 5


def test_others_are_encoded_as_before() -> None:
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("ab\n|. ")}, merges=[]))
    tokens, _ = fill_in("a ____ b.____a", encoder(made), lengths=[1])
    encode = encoder(made)
    assert tokens == [*encode("a"), 0, *encode(" b."), 0, *encode("a")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_with_what_stands_before_it(kind) -> None:
    made = kind()
    reader = object.__new__(ServerTokenizer)
    reader.backend = made
    ids = encoder(made)("The time jumped over a, Lily. é ü ")
    whole = made.decode(ids)
    for cut in range(1, len(ids)):
        stream = CharacterStream(reader, ids[:cut])
        added = "".join(stream.step(token) for token in ids[cut:]) + stream.rest()
        before = made.decode(ids[:cut])
        if not before.endswith("\ufffd"):
            assert before + added == whole


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_goes_on_with_its_prompt(kind, streamed: bool) -> None:
    made = kind()
    prompts = ["The time", "a\n", "un", ""]
    with running(writer()) as server:
        server.service.tokenizer.backend = made
        server.service.tokenizer.piece.cache_clear()
        for prompt in prompts:
            asked = {"prompt": prompt, "max_tokens": 12, "seed": 1, "logprobs": 0}
            asked |= {"suffix": " over, a.", "echo": True}
            url = f"{server.url}/v1/completions"
            if streamed:
                lines = httpx.post(url, json=asked | {"stream": True}, timeout=60).text.split("\n")
                parts = [json.loads(x[6:]) for x in lines if x[:6] == "data: " and x[6:7] == "{"]
                found = "".join(part["choices"][0]["text"] for part in parts if part["choices"])
            else:
                found = httpx.post(url, json=asked, timeout=60).json()["choices"][0]["text"]
            ids = _drawn(server, prompt, asked)
            whole = made.decode(ids)
            assert found == whole


def _drawn(server, prompt: str, asked) -> list[int]:
    """The prompt's tokens and those that the library draws after it."""
    import torch

    import armd

    reader = server.service.tokenizer
    given, behind = reader.encode(prompt, "prompt"), reader.encode_suffix(asked["suffix"], "suffix")
    tokens = torch.tensor([[*given, *[0] * 12, *behind]])
    known = torch.tensor([[True] * len(given) + [False] * 12 + [True] * len(behind)])
    generator = torch.Generator().manual_seed(1)
    made = armd.infill(server.model, tokens, known, generator=generator)[0].tolist()
    return made[: len(given) + 12]
