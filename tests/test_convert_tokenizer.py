"""Law: a converted model makes the same tokens of each text as its source, and so does the model
that it becomes again, although transformers chooses the class that reads a tokenizer by the kind of
model beside it, too."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from convert_help import source_model  # noqa: E402
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

from armd.convert.to_armd import convert  # noqa: E402
from armd.convert.to_llama import to_llama  # noqa: E402
from armd.data.tokenizer import from_transformers  # noqa: E402
from armd.runtime.atomic_files import damaged_files  # noqa: E402

TRAINING = ["Hello world 12345, it's  two  spaces\n\nnew line\ttab caf\u00e9 \u4f60\u597d x=3.14"]
TEXTS = (*TRAINING, " lead", "  two", "a  b", "</s>Hello", "Hello</s> world", "\nx", "ABC123def")
SPECIAL = ["<unk>", "<s>", "</s>"]
CLASSES = (None, "LlamaTokenizer", "PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2TokenizerFast")


def metaspace() -> Tokenizer:
    """As Llama's and Mistral's first ones are."""
    backend = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    spaces = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence(spaces)  # type: ignore[assignment]
    shown = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()
    backend.decoder = decoders.Sequence([*shown, decoders.Strip(" ", 1, 0)])  # type: ignore[assignment]
    letters = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trained(backend, special_tokens=letters)
    return backend


def digits() -> Tokenizer:
    """Byte-level, with rules of its own for numbers."""
    backend = Tokenizer(models.BPE())
    parts = [pre_tokenizers.Digits(individual_digits=True)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*parts, byte_level])  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trained(backend, special_tokens=SPECIAL, initial_alphabet=byte_level.alphabet())
    return backend


def trained(backend: Tokenizer, **options: Any) -> None:
    trainer = trainers.BpeTrainer(vocab_size=560, show_progress=False, **options)
    backend.train_from_iterator(TRAINING, trainer)


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen2"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / request.param
    source_model(request.param, folder, vocab_size=600)
    return folder


@pytest.mark.parametrize("kind", [metaspace, digits])
@pytest.mark.parametrize("named", CLASSES)
def test_the_tokens_are_those_of_the_source(
    source: Path, tmp_path: Path, kind: Any, named: str | None
) -> None:
    kind().save(str(source / "tokenizer.json"))
    facts = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    facts |= {} if named is None else {"tokenizer_class": named}
    (source / "tokenizer_config.json").write_text(json.dumps(facts))
    convert(str(source), tmp_path / "ours")
    to_llama(str(tmp_path / "ours"), tmp_path / "back")
    assert damaged_files(tmp_path / "ours") == []
    places = (source, tmp_path / "ours", tmp_path / "back")
    wanted, *others = (from_transformers(str(place)) for place in places)
    for other in others:
        assert other.encode_texts(list(TEXTS)) == wanted.encode_texts(list(TEXTS))
        for ids in wanted.encode_texts(list(TEXTS)):
            assert other.backend.decode(ids) == wanted.backend.decode(ids)
