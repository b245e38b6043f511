"""Law: the prepared tokens decode back to the documents, byte for byte, for every tokenizer that
is lossless; and the fast encoder gives exactly the tokens of `tokenizers`."""

import json
import os
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from armd.data.dataset import Dataset
from armd.data.encoder import Encoder
from armd.data.prepare import Preparation, prepare
from armd.data.text_pieces import pieces
from armd.data.tokenizer import find_tokenizer, tokenizer_hash

WEIRD = [
    "plain words, and 'quoted' ones: it's they'll I've 3.14%",
    "line\r\nends\n\n\n  and   runs \t of\u00a0 spaces\u3000 \u2028x",
    "naïve café “curly” — 日本語テキスト 한국어 العربية हिन्दी",
    "\U0001f469\u200d\U0001f4bb e\u0301 \ufeffbom \x01\x1c\x1f\x7f\x85 control \x00 zero",
    "spelled out: <|endoftext|> <|pad|> [SEP] [PAD] </s> é<|endoftext|>é é[SEP]",
    " ",
    "\n",
    "'s",
    "x" * 5000,
    "'" * 300 + " " * 300,
]
TRAINING = [*WEIRD, "the quick brown fox jumps over the lazy dog " * 20]
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
mixture = st.lists(
    st.one_of(text, st.sampled_from(["   ", "\n\n", " ", "\u00a0", "a", "it's", "1", "é", "—"]))
).map("".join)


def shared(name: str) -> Path:
    if "ARMD_DATA" not in os.environ:
        pytest.skip("set ARMD_DATA to a folder with gpt2-bpe and bert-base-uncased")
    return Path(os.environ["ARMD_DATA"]) / name


def tokenizer_word(name: str) -> str:
    return str(shared(name)) if name in ("gpt2-bpe", "bert-base-uncased") else name


def jsonl(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def stored_documents(dataset: Dataset) -> list[str]:
    tokenizer = dataset.tokenizer()
    documents = []
    for name in ("train", "heldout"):
        split = dataset.split(name)
        tokens = split.gather(split.n_tokens, np.array([0]))[0].tolist()
        begin = 0
        for place, token in enumerate(tokens):
            if token == dataset.eos:
                decoded = tokenizer.decode(tokens[begin:place], clean_up_tokenization_spaces=False)
                documents.append(decoded)
                begin = place + 1
        assert begin == len(tokens), "a split ends with the EOS of its last document"
    return documents


@pytest.mark.parametrize("name", ["byte", "bpe:300", "gpt2-bpe"])
def test_tokens_decode_to_the_documents(name: str, tmp_path: Path):
    source = jsonl(tmp_path / "weird.jsonl", TRAINING)
    word = tokenizer_word(name)
    dataset = prepare(Preparation(str(source), word, tmp_path / "out", workers=1, heldout=0.3))
    assert sorted(stored_documents(dataset)) == sorted(TRAINING)
    assert dataset.manifest["splits"]["heldout"]["documents"] >= 1


def test_the_byte_tokenizer_gives_the_bytes():
    tokenizer = find_tokenizer("byte", [], rows=False)
    encoder = Encoder(tokenizer.backend.to_str(), np.dtype("<u2"))
    for document in WEIRD:
        tokens = np.frombuffer(encoder.encode([document])[0], "<u2")
        assert tokens.astype(np.uint8).tobytes() == document.encode()
    assert (tokenizer.eos, tokenizer.vocab_size) == (256, 257)


@pytest.fixture(scope="module", params=["byte", "bpe:300", "gpt2-bpe", "bert-base-uncased"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    found = find_tokenizer(tokenizer_word(request.param), TRAINING, rows=True)
    encoder = Encoder(found.backend.to_str(), np.dtype("<u2"))
    assert encoder.pattern is not None
    return encoder


def slowly(tokenizer: Tokenizer, document: str) -> list[int]:
    return tokenizer.encode(document, add_special_tokens=False).ids


def quickly(encoder: Encoder, documents: list[str]) -> list[int]:
    return np.frombuffer(b"".join(encoder.encode(documents)), "<u2").tolist()


@settings(max_examples=150, deadline=None)
@given(document=mixture)
def test_fast_tokens_are_those_of_tokenizers(encoder: Encoder, document: str):
    assert quickly(encoder, [document]) == slowly(encoder.tokenizer, document)


@settings(max_examples=100, deadline=None)
@given(document=mixture, size=st.integers(1, 20))
def test_pieces_have_the_tokens_of_the_whole(encoder: Encoder, document: str, size: int):
    assert encoder.pattern is not None  # without which no text is cut
    parts = list(pieces(document, size))
    assert "".join(parts) == document
    assert quickly(encoder, parts) == slowly(encoder.tokenizer, document)


def test_every_code_point_is_encoded_as_tokenizers_does(encoder: Encoder):
    generator = random.Random(0)
    points = [chr(p) for p in range(0x30000) if not 0xD800 <= p < 0xE000]
    generator.shuffle(points)
    glue = ["", "", "", "a", " ", "1", "'", "\n", "\u00a0", "  ", "'s", "é", "-"]
    document = "".join(point + generator.choice(glue) for point in points)
    parts = [document[i : i + 5000] for i in range(0, len(document), 5000)]
    for part in parts:
        assert quickly(encoder, [part]) == slowly(encoder.tokenizer, part)


def test_every_kind_of_space_in_every_place(encoder: Encoder):
    spaces = [chr(p) for p in range(0x3001) if unicodedata.category(chr(p))[0] in "ZC"]
    places = ["a{}b", "a{} b", "a {}b", "a{}  b", "a  {}b", "a{}{}b", "é{}  é", "{}", "a\n{}\n b"]
    for document in (place.replace("{}", space) for space in spaces for place in places):
        assert quickly(encoder, [document]) == slowly(encoder.tokenizer, document), ascii(document)


def test_cuts_never_fall_inside_a_run_of_spaces(encoder: Encoder):
    document = "a    b \n\n\n   c\u00a0\u00a0  d\t\t  \n e" * 3
    for size in range(1, len(document)):
        parts = list(pieces(document, size))
        assert quickly(encoder, parts) == slowly(encoder.tokenizer, document)


def test_trained_tokenizer_and_saved_hash_are_reproducible(tmp_path: Path):
    first, second = (find_tokenizer("bpe:400", TRAINING, rows=False) for _ in range(2))
    assert tokenizer_hash(first.backend) == tokenizer_hash(second.backend)
    assert first.vocab_size <= 400
    first.save(tmp_path / "tokenizer")
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"))
    assert tokenizer_hash(loaded.backend_tokenizer) == tokenizer_hash(first.backend)
    assert loaded.eos_token_id == first.eos
    again = find_tokenizer(str(tmp_path / "tokenizer"), [], rows=False)
    assert tokenizer_hash(again.backend) == tokenizer_hash(first.backend)


def test_vocabulary_files_give_the_published_ids():
    gpt2 = find_tokenizer(str(shared("gpt2-bpe")), [], rows=False)
    assert (gpt2.vocab_size, gpt2.eos, gpt2.pad) == (50257, 50256, None)
    assert slowly(gpt2.backend, "Hello world") == [15496, 995]
    bert = find_tokenizer(str(shared("bert-base-uncased")), [], rows=True)
    assert (bert.vocab_size, bert.eos, bert.pad) == (30522, 102, 0)
    assert slowly(bert.backend, "Hello WORLD") == [7592, 2088]
