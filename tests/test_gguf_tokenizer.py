"""Laws: a tokenizer stays as it is through a GGUF file, which is read as llama.cpp reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

from convert_help import source_model  # noqa: E402
from tokenizers import (  # noqa: E402
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from armd.convert import to_gguf, to_gguf_tokenizer  # noqa: E402
from armd.convert.gguf_words import name_for  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.data.tokenizer import TextTokenizer, byte_symbols  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.pretrained import load_tokenizer  # noqa: E402

pytestmark = pytest.mark.usefixtures("unchecked")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENDS = ("<|begin_of_text|>", "<\uff5cend▁of▁text\uff5c>")
TEXTS = (
    "the other",
    " the",
    "  two",
    "a\nb\n\nc",
    "naïve 1234",
    "x<s>the<s>",
    "x</s> y",
    "tail ",
    "",
)


def llama3() -> TextTokenizer:
    """Without GPT-2's <|endoftext|>; `the` is a word that no merges make."""
    words = [*byte_symbols(), "th", "Ġt", "the", "Ġthe"]
    vocabulary = {word: number for number, word in enumerate(words)}
    merges = [("t", "h"), ("Ġ", "t")]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(ENDS))
    return TextTokenizer(backend, dict(zip(("bos_token", "eos_token"), ENDS, strict=True)))


def sentencepiece(kind: str, merges_of: str = "") -> TextTokenizer:
    """As of Llama 2: `kind` says which spaces stand before a text. `merges_of`: with a token whose
    number is not in the order of the merges, or with one that they do not make."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "t", "h", "e", "▁t", "he", "▁the", "▁▁", "x", "y"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁")]
    if merges_of == "another order":
        words.append("th")
        merges.insert(0, ("t", "h"))
    elif merges_of == "fewer":
        merges.remove(("▁t", "he"))
    vocabulary = {word: number for number, word in enumerate(words)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(model)
    backend.add_special_tokens(words[:3])
    saved = json.loads(backend.to_str())
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = [{"type": "Prepend", "prepend": "▁"}] if kind == "prepend" else []
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    parts = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *([] if kind == "none" else [strip])]
    saved["decoder"] = {"type": "Sequence", "decoders": parts}
    if kind == "metaspace":
        space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        saved["pre_tokenizer"] = space
    else:
        saved["normalizer"] = {"type": "Sequence", "normalizers": [*prepend, replace]}
    special = dict(zip(("unk_token", "bos_token", "eos_token"), words, strict=False))
    return TextTokenizer(Tokenizer.from_str(json.dumps(saved)), special)


def through_gguf(made: TextTokenizer, folder: Path) -> tuple[Path, TextTokenizer]:
    """The file of a model whose table these tokens fill, and what is read from it."""
    source = folder / "source"
    folder.mkdir(exist_ok=True)
    source_model("llama", source, vocab_size=made.vocab_size)
    made.save(folder / "tokenizer")
    for file in (folder / "tokenizer").iterdir():
        file.replace(source / file.name)
    convert(str(source), folder / "ours")
    to_gguf.to_gguf(str(folder / "ours"), folder / "model.gguf", "F32")
    convert(str(folder / "model.gguf"), folder / "again")
    return folder / "model.gguf", load_tokenizer(folder / "again")


def same(one: TextTokenizer, other: TextTokenizer, texts: tuple[str, ...] = TEXTS) -> None:
    for text in texts:
        ids = one.backend.encode(text, add_special_tokens=False).ids
        assert other.backend.encode(text, add_special_tokens=False).ids == ids, text
        assert other.backend.decode(ids) == one.backend.decode(ids), text


def test_no_token_is_added_and_none_is_respelled(tmp_path: Path) -> None:
    made = llama3()
    file, again = through_gguf(made, tmp_path)
    assert again.vocab_size == made.vocab_size
    assert (again.bos, again.eos) == (made.bos, made.eos)
    same(made, again, (*TEXTS, f"{ENDS[0]}the{ENDS[1]}"))
    pytest.importorskip("accelerate")
    from armd.eval.judge import load_judge

    same(made, load_judge(str(file)).tokenizer)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BYTES, GPT2_BYTES = (
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex) for regex in (False, True)
)
CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"\p{N}")
# how a tokenizer cuts text into words, the name of it in a file, or None: there is none
CUTS: list[tuple[Any, str | None]] = [
    ([GPT2_BYTES], "gpt-2"),
    ([pre_tokenizers.Split(Regex(GPT2), "isolated"), BYTES], "gpt-2"),
    ([pre_tokenizers.Digits(individual_digits=True), GPT2_BYTES], "smollm"),
    ([pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), GPT2_BYTES], "smollm"),
    ([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTES], "dbrx"),
    ([pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), BYTES], "qwen2"),
    ([*(pre_tokenizers.Split(Regex(part), "isolated") for part in CODER), BYTES], None),
    ([pre_tokenizers.Digits(individual_digits=False), GPT2_BYTES], None),
    ([BYTES], None),
]


def cutting(cut: list[Any]) -> TextTokenizer:
    """Merges of everything that one way of cutting keeps together and another takes apart."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = BYTES, decoders.ByteLevel()
    texts = ["\n\n1. 12345 1234", "a\n\n  12", "we'll WE'LL.\n\n", "x=   42\t\t7", "a.b 1.5"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=byte_symbols(),
        special_tokens=["</s>"],
        show_progress=False,
    )
    backend.train_from_iterator(texts * 3, trainer)
    backend.pre_tokenizer = pre_tokenizers.Sequence(cut)
    return TextTokenizer(backend, {"bos_token": "</s>", "eos_token": "</s>"})


@pytest.mark.parametrize(("cut", "name"), CUTS, ids=[str(name) for _, name in CUTS])
def test_words_are_cut_as_before_or_the_file_is_not_written(
    cut: list[Any], name: str | None, tmp_path: Path
) -> None:
    """Where digits, spaces and the ends of lines meet, another way gives other tokens."""
    made = cutting(cut)
    if name is None:
        with pytest.raises(ArmdError, match="no name for how this tokenizer cuts"):
            through_gguf(made, tmp_path)
        assert not (tmp_path / "model.gguf").exists()
        return
    file, again = through_gguf(made, tmp_path)
    import gguf

    assert gguf.GGUFReader(file).fields["tokenizer.ggml.pre"].contents() == name
    same(made, again, (*TEXTS, "\n\n1. 12345 1234 x=   42\t\t7 a.b 1.5 WE'LL we'll a\n\n  12"))


@pytest.mark.parametrize("kind", [normalizers.Lowercase(), normalizers.NFC()], ids=["lower", "NFC"])
def test_text_that_is_changed_first_is_refused_or_told(
    kind: Any, tmp_path: Path, capsys: Any
) -> None:
    """llama.cpp changes none before its BPE; NFC leaves ordinary text as it is."""
    made = cutting([GPT2_BYTES])
    made.backend.normalizer = kind
    if isinstance(kind, normalizers.NFC):
        same(made, through_gguf(made, tmp_path)[1])
        assert "form NFC" in capsys.readouterr().err
        return
    with pytest.raises(ArmdError, match=r"changes text first \(Lowercase\).*--to llama"):
        through_gguf(made, tmp_path)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    ("name", "said"), [("deepseek-coder", "'deepseek-coder', which"), ("", "not said")]
)
def test_a_way_to_cut_that_is_not_known_is_refused(
    name: str, said: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(to_gguf_tokenizer, "name_for", lambda _: name)
    with pytest.raises(ArmdError, match=f"how text is cut into words is {said}"):
        through_gguf(cutting([GPT2_BYTES]), tmp_path)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rope.scale_linear", 4.0, "rotary positions scaled by 'linear'"),
        ("rope.scaling.factor", 4.0, "rotary positions scaled by 'linear'"),
        ("rope.scaling.factor", 1.0, None),
        ("attention.scale", 0.5, "attention of another scale"),
        ("attention.causal", 0.0, "both sides"),
    ],
)
def test_a_network_that_is_not_ours_is_refused(
    key: str, value: float, said: str | None, tmp_path: Path, monkeypatch: Any
) -> None:
    """As llama.cpp reads these keys: a factor without a type is of linear scaling."""
    before = to_gguf.add_facts

    def more(writer: Any, *rest: Any) -> None:
        before(writer, *rest)
        writer.add_float32(f"llama.{key}", value)

    monkeypatch.setattr(to_gguf, "add_facts", more)
    if said is None:
        through_gguf(cutting([GPT2_BYTES]), tmp_path)
        return
    with pytest.raises(ArmdError, match=said):
        through_gguf(cutting([GPT2_BYTES]), tmp_path)


@pytest.mark.parametrize("kind", ["prepend", "none"])
def test_the_space_before_a_text_is_the_source_s(kind: str, tmp_path: Path) -> None:
    made = sentencepiece(kind)
    same(made, through_gguf(made, tmp_path)[1])


def test_pieces_are_joined_in_the_order_of_the_merges(tmp_path: Path, capsys: Any) -> None:
    """Readers of a file go by scores: numbers of tokens are no order of merges."""
    made = sentencepiece("prepend", "another order")
    assert made.backend.encode("the", add_special_tokens=False).tokens == ["▁", "th", "e"]
    same(made, through_gguf(made, tmp_path / "1")[1])
    assert "joins fewer" not in capsys.readouterr().err
    through_gguf(sentencepiece("prepend", "fewer"), tmp_path / "2")
    assert "joins fewer pieces" in capsys.readouterr().err


def test_what_a_file_cannot_say_of_tokens_is_refused_or_told(capsys: Any) -> None:
    saved = {"model": {"end_of_word_suffix": "</w>"}, "added_tokens": []}
    with pytest.raises(ArmdError, match="end_of_word_suffix"):
        to_gguf_tokenizer.check_pieces(saved)
    to_gguf_tokenizer.check_pieces(
        {"model": {}, "added_tokens": [{"content": "<m>", "lstrip": True}]}
    )
    assert "<m>" in capsys.readouterr().err
    one = Tokenizer(models.BPE({byte: n for n, byte in enumerate(byte_symbols())}, []))
    for prefix in (False, True):
        one.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        if prefix:
            with pytest.raises(ArmdError, match="cuts text"):
                name_for(json.loads(one.to_str()))
        else:
            assert name_for(json.loads(one.to_str())) == "gpt-2"


def test_a_file_that_does_not_say_has_the_space(tmp_path: Path, monkeypatch: Any) -> None:
    import gguf

    monkeypatch.setattr(gguf.GGUFWriter, "add_add_space_prefix", lambda *_: None)
    same(sentencepiece("prepend"), through_gguf(sentencepiece("none"), tmp_path)[1])


def test_spaces_that_no_file_can_say_are_told(tmp_path: Path, capsys: Any) -> None:
    """llama.cpp adds a space to each text, Metaspace only where there is none."""
    made = sentencepiece("metaspace")
    again = through_gguf(made, tmp_path)[1]
    assert "one more space there" in capsys.readouterr().err
    same(made, again, tuple(text for text in TEXTS if text[:1] != " " and "s>" not in text))
    same(sentencepiece("prepend"), again)
