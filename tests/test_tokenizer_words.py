"""Laws of tokenizers that a folder holds: one that knows no words is refused, and a word without
end does not keep the training of one."""

import json
from pathlib import Path

import pytest

from armd.convert.source import copy_tokenizer
from armd.data.prepare import Preparation, prepare
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


def test_a_word_without_end_does_not_keep_the_tokenizer(tmp_path: Path):
    """Training takes time by the square of its length."""
    source = tmp_path / "s.txt"
    source.write_text("ab" * 2_000_000 + " words and words")
    prepare(Preparation(str(source), "bpe:300", tmp_path / "out", workers=1, heldout=0))
