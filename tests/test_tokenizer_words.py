"""Laws of tokenizers that a folder holds: one that knows no words is refused, and a word without
end does not keep the training of one."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Unigram, WordLevel, WordPiece
from tokenizers.pre_tokenizers import ByteLevel

from armd.convert.source import copy_tokenizer
from armd.data.encoder import word_pattern
from armd.data.prepare import Preparation, prepare
from armd.data.text_pieces import for_training
from armd.data.tokenizer import (
    byte_symbols,
    byte_tokenizer,
    find_tokenizer,
    trained_tokenizer,
)
from armd.errors import ArmdError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "s.jsonl"
    file.write_text("".join(f'{{"text": "words of text {n}"}}\n' for n in range(99)))
    return file


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Qwen2", "Gemma", "Bert", "T5"])
def test_a_tokenizer_without_its_vocabulary_is_refused(source: Path, tmp_path: Path, kind: str):
    """transformers makes one of it that reads every text as nothing, or as unknown."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    facts = {"tokenizer_class": f"{kind}Tokenizer", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    with pytest.raises(ArmdError, match=r"knows no words.*copy it again"):
        prepare(Preparation(str(source), str(folder), tmp_path / "out", workers=1))
    with pytest.raises(ArmdError, match="knows no words"):
        copy_tokenizer(folder, tmp_path)


@pytest.mark.parametrize("words", [b"{}", b'{"<|endoftext|>": 0}', b"[UNK]\n\xff"])
def test_files_of_a_vocabulary_without_words_are_refused(
    source: Path, tmp_path: Path, words: bytes
):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    if words.startswith(b"{"):
        (folder / "vocab.json").write_bytes(words)
        (folder / "merges.txt").touch()
    else:
        (folder / "vocab.txt").write_bytes(words)
    with pytest.raises(ArmdError, match=r"knows no words|is no UTF-8 text"):
        prepare(Preparation(str(source), str(folder), tmp_path / "out", workers=1))


def test_a_document_that_is_cut_has_the_words_of_the_whole(monkeypatch: pytest.MonkeyPatch):
    """Training has in hand what it is given at a time, and a hundred times as much memory."""
    texts = ["It's  cut\n\nor\tnot, \u00e9t\u00e9 \u3000\u4e2d  \n 12 don't. " * 40, "", " a  b"]
    whole = trained_tokenizer(300, texts).backend.to_str()
    for size in (1, 2, 5, 64):
        monkeypatch.setattr("armd.data.text_pieces.TRAINING_CHARACTERS", size)
        parts = list(for_training(texts))
        assert "".join(parts) == "".join(texts) and max(map(len, parts)) < size + 10
        assert trained_tokenizer(300, texts).backend.to_str() == whole


@pytest.mark.parametrize("spaced", [False, True])
def test_a_long_text_has_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch, spaced: bool):
    """Also where special tokens are spelled out; one that takes the space behind it is not cut."""
    text = "It's  <|endoftext|>  cut\n<m> or <m>  not, \u00e9t\u00e9 <m>\n 12 don't. " * 9
    found = trained_tokenizer(300, [text])
    mark = AddedToken("<m>", rstrip=spaced, lstrip=spaced, special=True)
    found.backend.add_special_tokens([mark])
    whole = found.backend.encode(text, add_special_tokens=False).ids
    assert found.may_be_cut is not spaced
    for size in (1, 3, 16, 10_000):
        monkeypatch.setattr("armd.data.tokenizer.LONG_TEXT", size)
        assert found.encode_texts([text, "a b"])[0] == whole
    assert found.encode_texts([]) == [] and found.encode_texts([""]) == [[]]


def test_a_word_without_end_does_not_keep_the_tokenizer(tmp_path: Path):
    """Training takes time by the square of its length."""
    source = tmp_path / "s.txt"
    source.write_text("ab" * 2_000_000 + " words and words")
    prepare(Preparation(str(source), "bpe:300", tmp_path / "out", workers=1, heldout=0))


@pytest.mark.parametrize(
    "change",
    [
        {
            "padding": {
                "strategy": {"Fixed": 10**9},
                "direction": "Right",
                "pad_to_multiple_of": None,
            }
            | {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
        },
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
    ],
    ids=["padding", "charsmap", "pattern"],
)
def test_what_a_tokenizer_asks_for_is_no_end_of_the_process(change: dict, tmp_path: Path) -> None:
    """Padding is not heeded; what makes the library give up is said in a line."""
    folder = tmp_path / "tokenizer"
    byte_tokenizer().save(folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    if "padding" in change:
        assert find_tokenizer(str(folder), (), rows=False).backend.encode("ab").ids
    else:
        with pytest.raises(ArmdError):
            find_tokenizer(str(folder), (), rows=False)


@pytest.mark.parametrize("kind", [Unigram, WordLevel, WordPiece])
def test_words_are_cut_at_for_every_kind_of_model(kind: type) -> None:
    """Whether BPE has a dropout is asked of BPE alone."""
    words = [*sorted(byte_symbols()), "<unk>"]
    table = [(w, -1.0) for w in words] if kind is Unigram else {w: k for k, w in enumerate(words)}
    more = {"unk_id": len(words) - 1} if kind is Unigram else {"unk_token": "<unk>"}
    backend = Tokenizer(kind(table, **more))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    assert word_pattern(backend) is not None
    text = "some words, and 12 more\n  words"
    pieces = word_pattern(backend).findall(text)
    alone = [i for p in pieces for i in backend.encode(p, add_special_tokens=False).ids]
    assert alone == backend.encode(text, add_special_tokens=False).ids
