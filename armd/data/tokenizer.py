"""Which tokenizer does a word name? Bytes, BPE trained here, vocabulary files, or Hugging Face's.
All end as one kind: a fast tokenizer folder that AutoTokenizer reads."""

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ..errors import ArmdError, first_line
from ..runtime.foreign_code import no_foreign_code
from .hub import require_hub
from .source_ends import KEPT, leave_out_ends
from .text_pieces import for_training, pieces
from .tokenizer_files import (
    check_sentencepiece,
    check_tokenizer_files,
    encode_whole,
    knows_words,
    os_errors,
)

END, PAD = "<|endoftext|>", "<|pad|>"
KNOWN = ("byte", "gpt2", "bert-base-uncased", "bpe:4096")
LONG_TEXT = 1 << 20
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and what its special tokens are for."""

    backend: Tokenizer
    special: dict[str, str]  # role, as transformers names it -> token
    kept: dict[str, Any] = field(default_factory=dict)  # see source_ends.py

    @property
    def vocab_size(self) -> int:
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def eos(self) -> int:
        found = self.backend.token_to_id(self.special["eos_token"])
        assert found is not None
        return found

    @property
    def bos(self) -> int:
        """The token that opens a window: BOS, CLS, or else EOS, as GPT-2 has it."""
        token = self.special.get("bos_token") or self.special.get("cls_token")
        found = None if token is None else self.backend.token_to_id(token)
        return self.eos if found is None else found

    @property
    def pad(self) -> int | None:
        token = self.special.get("pad_token")
        return None if token is None else self.backend.token_to_id(token)

    def encode_texts(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text alone, without those that would open or close it. Long ones are
        read in parts, where that is exact: `tokenizers` takes a hundred bytes for each letter."""
        encode = partial(self.backend.encode_batch, add_special_tokens=False)
        with no_panic():
            if max(map(len, texts), default=0) > LONG_TEXT and self.may_be_cut:
                cut = (pieces(text, LONG_TEXT) for text in texts)
                return [[one for part in parts for one in encode([part])[0].ids] for parts in cut]
            return [encoding.ids for encoding in encode(texts)]

    @property
    def may_be_cut(self) -> bool:
        """Whether parts of a text have the tokens of the whole."""
        from .encoder import word_pattern

        added = self.backend.get_added_tokens_decoder().values()
        across = any(one.rstrip or any(map(str.isspace, one.content)) for one in added)
        return not across and word_pattern(self.backend) is not None

    def save(self, folder: Path) -> None:
        folder.mkdir()
        with os_errors():
            self.backend.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.special,
            **self.kept,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        leave_out_ends(folder)


def tokenizer_hash(backend: Tokenizer) -> str:
    """Of all that decides a text's tokens; padding, templates and decoding play no part."""
    whole = json.loads(backend.to_str())
    added = sorted((token["id"], token["content"]) for token in whole["added_tokens"])
    return _digest([added, whole["normalizer"], whole["pre_tokenizer"], whole["model"]])


def whole_hash(tokenizer: TextTokenizer) -> str:
    """Of all of it, and what its special tokens are for."""
    return _digest([json.loads(tokenizer.backend.to_str()), tokenizer.special])


def _digest(parts: list[object]) -> str:
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def find_tokenizer(name: str, training_texts: Iterable[str], *, rows: bool) -> TextTokenizer:
    """The tokenizer a user's word names, with an EOS and, for rows, a pad of its own."""
    if name == "byte":
        found = byte_tokenizer()
    elif name.startswith("bpe:"):
        found = trained_tokenizer(bpe_size(name), training_texts)
    elif os.path.isdir(name):
        found = from_folder(Path(name))
    else:
        found = from_hub(name)
    return with_ends(found, rows=rows)


def bpe_size(name: str) -> int:
    size = name.removeprefix("bpe:")
    if not size.isdecimal() or len(size) > 7 or int(size) < 258:
        raise ArmdError(
            f"tokenizer '{name[:40]}': give a size of at least 258 and below 10,000,000, "
            "such as bpe:4096"
        )
    return int(size)


def byte_level(model: models.Model, *, split: bool) -> Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    backend.decoder = decoders.ByteLevel()
    return backend


def byte_symbols() -> list[str]:
    """The printable character byte-level BPE writes for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def byte_tokenizer() -> TextTokenizer:
    """Token id = byte: byte-level BPE without merges."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    backend = byte_level(models.BPE(vocab=vocabulary, merges=[]), split=False)
    return TextTokenizer(backend, {})


def trained_tokenizer(size: int, texts: Iterable[str]) -> TextTokenizer:
    """Byte-level BPE of `size` tokens, EOS among them, trained on `texts`."""
    backend = byte_level(models.BPE(), split=True)
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(byte_symbols()),
        show_progress=False,
    )
    with no_panic():
        backend.train_from_iterator(for_training(texts), trainer)
    return TextTokenizer(backend, {"eos_token": END})


@contextmanager
def no_panic() -> Iterator[None]:
    """Inside, a tokenizer whose pattern gives up on a text (as on millions of spaces) is a mistake
    to be told, and no end of the process."""
    try:
        yield
    except BaseException as error:  # tokenizers' own is no Exception, and has no name to import
        if type(error).__name__ != "PanicException":
            raise
        reason = (str(error).splitlines() or ["no reason given"])[0][:120]
        raise ArmdError(
            f"the tokenizer gives up on a text ({reason}); cut long runs of one character, or use "
            "another tokenizer"
        ) from None


def from_folder(folder: Path) -> TextTokenizer:
    """A saved tokenizer, or the bare vocabulary files of GPT-2 or BERT."""
    ours = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    if any((folder / name).exists() for name in ours):
        return from_transformers(str(folder))
    check_tokenizer_files(folder)
    for vocabulary, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        if (folder / vocabulary).exists() and (folder / merges).exists():
            return with_words(from_gpt2_files(folder / vocabulary, folder / merges), str(folder))
    if (folder / "vocab.txt").exists():
        return with_words(from_bert_file(folder / "vocab.txt"), str(folder))
    raise ArmdError(
        f"no tokenizer in {folder}: expected tokenizer.json, "
        "encoder.json and vocab.bpe, vocab.json and merges.txt, or vocab.txt"
    )


def from_gpt2_files(vocabulary: Path, merges: Path) -> TextTokenizer:
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # tokenizers raises bare Exception
        raise ArmdError(f"cannot read {vocabulary} and {merges}: {error}") from None
    backend = byte_level(model, split=True)
    if backend.token_to_id(END) is None:
        return TextTokenizer(backend, {})
    backend.add_special_tokens([END])
    return TextTokenizer(backend, dict.fromkeys(("bos_token", "eos_token", "unk_token"), END))


def from_bert_file(vocabulary: Path) -> TextTokenizer:
    try:
        words = vocabulary.read_text(encoding="utf-8").splitlines()
    except UnicodeError as error:
        raise ArmdError(f"{vocabulary} is no UTF-8 text ({error}); copy it again") from None
    special = {role: f"[{role[:-6].upper()}]" for role in ROLES[2:]}
    if missing := [token for token in special.values() if token not in words]:
        raise ArmdError(f"{vocabulary} is no BERT vocabulary: it lacks {', '.join(missing)}")
    backend = Tokenizer(models.WordPiece.from_file(str(vocabulary), unk_token="[UNK]"))
    lowercase = not any(word.isalpha() and word != word.lower() for word in words)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(special.values()))
    return TextTokenizer(backend, special)


def from_hub(name: str) -> TextTokenizer:
    try:
        return from_transformers(name, local_files_only=True)
    except ArmdError:
        near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.6)
        hint = f"did you mean '{near[0]}'? or " if near and name not in KNOWN else ""
        require_hub(f"tokenizer '{name}'", f"{hint}give a folder with its files, byte or bpe:4096")
    return from_transformers(name)


def from_transformers(name: str, **options: bool) -> TextTokenizer:
    from transformers import AutoTokenizer

    if os.path.isdir(name):
        check_tokenizer_files(Path(name))
        check_sentencepiece(Path(name))
    try:
        with no_panic(), no_foreign_code(name):
            loaded = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # the hub client and the readers raise many kinds
        reason = first_line(error)
        known = ", ".join(KNOWN)
        raise ArmdError(
            f"no tokenizer '{name}' ({known}, a folder or hub name): {reason}"
        ) from None
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ArmdError(f"tokenizer '{name}' has no fast form; choose one with a tokenizer.json")
    special = {role: str(getattr(loaded, role)) for role in ROLES if getattr(loaded, role, None)}
    kept = {name: noted for name, noted in loaded.init_kwargs.items() if name == KEPT}
    return with_words(TextTokenizer(backend, special, kept), name)


def with_words(found: TextTokenizer, name: str) -> TextTokenizer:
    """The same; raises for one that reads none of its own words."""
    try:
        with no_panic():
            encode_whole(found.backend)  # padding would be as long as the file says
            known = knows_words(found.backend, found.special.get("unk_token"))
    except Exception as error:  # tokenizers raises bare Exception
        raise ArmdError(f"tokenizer '{name}' is damaged ({error}); copy it again") from None
    if not known:
        raise ArmdError(
            f"tokenizer '{name}' knows no words: the file of its vocabulary is missing or damaged "
            "(tokenizer.json, vocab.json, vocab.txt, tokenizer.model); copy it again"
        )
    return found


def with_ends(found: TextTokenizer, *, rows: bool) -> TextTokenizer:
    """EOS: the tokenizer's own, else its separator, else a new token. Rows need a pad that no
    text can hold, or its real occurrences would go unscored."""
    special = dict(found.special)
    end = special.get("eos_token") or special.get("sep_token") or END
    special["eos_token"] = end
    if not rows:
        special.pop("pad_token", None)
    elif special.get("pad_token") in (None, end, special.get("unk_token")):
        special["pad_token"] = PAD
    for role in ("eos_token", "pad_token"):
        if role in special:
            found.backend.add_special_tokens([AddedToken(special[role], special=True)])
    encode_whole(found.backend)
    return replace(found, special=special)
