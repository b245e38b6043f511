"""May the files of a tokenizer's folder be opened, and what of them counts? No code of theirs is
ever run, and none of them may lie elsewhere."""

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import ArmdError, os_error_in
from ..model.folder_check import check_inside
from ..runtime.numbers import whole_number

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "tokenizer.model",
    "chat_template.jinja",
    "config.json",
)
TEMPLATES = "additional_chat_templates"
MOST_BYTES, MOST_WORDS = 1 << 28, 1 << 23
SOME_WORDS = 64
"""That a tokenizer is tried with."""
CONFIG, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
NAMES_A_FILE = ("file", "files", "path", "dir", "kwargs", "vocab", "merges", "spm", "init_inputs")
"""How entries end that transformers gives to the tokenizer, which opens what they name."""
REPLACED = (
    *("tokenizer_file", "special_tokens_map_file", "added_tokens_file", "tokenizer_config_file"),
    *("chat_template_file", "name_or_path"),
)
"""Those that many tokenizers were saved with, and that transformers puts its own in place of."""


def check_tokenizer_files(folder: Path) -> None:
    """Raise for files that are links out of the folder, too large, damaged, or that ask for code of
    their own to be run or for files elsewhere."""
    check_inside(folder)
    found = [folder / name for name in FILES] + list((folder / TEMPLATES).glob("*"))
    for path in found:
        if not path.exists() and not path.is_symlink():
            continue
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ArmdError(f"{path} is no file of a tokenizer; put its copy back")
        if path.suffix == ".json":
            _check_json(path)


def _check_json(path: Path) -> None:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArmdError(f"{path} is damaged ({error}); put its copy back") from None
    if not isinstance(content, dict):
        raise ArmdError(f"{path} is damaged: it holds no table; put its copy back")
    if path.name == CONFIG and (number := largest_number(content)) > MOST_WORDS:
        raise ArmdError(f"{path} asks for {number:,} words; put its copy back")
    if (name := content.get("tokenizer_class")) and not is_tokenizer(name):
        raise ArmdError(f"{path} asks for '{str(name)[:80]}', which is no tokenizer; remove that")
    if path.name == "config.json" and makes_of_others(content):
        raise ArmdError(f"{path} asks for a tokenizer made of others (rag); remove that")
    mapped = content.get("auto_map")
    asks = mapped.get("AutoTokenizer") if isinstance(mapped, dict) else mapped
    if asks:
        raise ArmdError(
            f"{path} asks to run code of its own (auto_map), which is refused; remove that entry, "
            "or use a tokenizer with a tokenizer.json"
        )
    if named := next(
        filter(None, (_names_a_file(path.name, *item) for item in content.items())), None
    ):
        raise ArmdError(f"{path} names other files ({named[:80]}), which is refused; remove it")


def is_tokenizer(name: object) -> bool:
    """Whether a class of this name reads a vocabulary and nothing else. transformers takes any of
    its own: AutoModel opens pickled weights, RagTokenizer looks for tokenizers in subfolders."""
    known = isinstance(name, str) and name.endswith(("Tokenizer", "TokenizerFast", "Backend"))
    return known and name not in ("AutoTokenizer", "RagTokenizer")


def largest_number(settings: dict[str, Any]) -> int:
    """Of those that transformers makes a word for each number below (`extra_ids`, `offset`, places
    of added tokens); a length of texts is none."""
    given = [value for name, value in settings.items() if "max_len" not in name]
    added = settings.get("added_tokens_decoder")
    places = [place_of(key) for key in added] if isinstance(added, dict) else []
    return max([value for value in given if type(value) is int] + places, default=0)


def place_of(key: str) -> int:
    """The place of an added token; one too many where it is none, or has more digits than Python
    reads."""
    place = whole_number(key, 0, MOST_WORDS)
    return MOST_WORDS + 1 if place is None else place


def makes_of_others(config: object) -> bool:
    """Whether transformers would choose RagTokenizer by the kind of model, at any depth."""
    parts = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if part.get("model_type") == "rag":
                return True
            parts += part.values()
    return False


def _names_a_file(file: str, name: str, value: object) -> str | None:
    """The name of an entry by which transformers would read a file that is none of the folder's
    own (`vocab_file` may say vocab.json); None for others."""
    if file == "config.json":
        wrong = name == "configuration_files"
    elif file == SPECIAL:  # each entry becomes an argument of the tokenizer, after all others
        wrong = not name.endswith(("_token", "_tokens"))
    else:
        wrong = file == CONFIG and name.endswith(NAMES_A_FILE) and name not in REPLACED
    return name if wrong and value not in (None, [], {}, *FILES) else None


def encode_whole(backend: Tokenizer) -> None:
    """What a file may ask for besides its tokens is off: padding, truncation, and BPE dropout, with
    which each call gives other tokens."""
    backend.no_padding()
    backend.no_truncation()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None


@contextmanager
def os_errors() -> Iterator[None]:
    """Where `tokenizers` cannot write a file, it raises a bare Exception; inside, that becomes the
    OSError of which it tells."""
    try:
        yield
    except Exception as error:
        raise os_error_in(error) or error from None


def check_sentencepiece(folder: Path) -> None:
    """Raise if the tokenizer is in sentencepiece's own form alone and nothing here reads it."""
    own = (folder / "tokenizer.model").exists() and not (folder / "tokenizer.json").exists()
    if own and importlib.util.find_spec("sentencepiece") is None:
        raise ArmdError(
            f"{folder} has a tokenizer.model alone; pip install sentencepiece protobuf, which read "
            "it, or put the tokenizer.json of the same model there"
        )


def knows_words(backend: Tokenizer, unknown: str | None) -> bool:
    """Whether it reads one of its own words. transformers makes a tokenizer without a vocabulary
    of a folder that lacks the file."""
    no_words = {at for at, one in backend.get_added_tokens_decoder().items() if one.special}
    if unknown is not None and (at := backend.token_to_id(unknown)) is not None:
        no_words.add(at)
    words = sorted(set(backend.get_vocab().values()) - no_words)
    texts = [backend.decode([word]) for word in words[:: max(1, len(words) // SOME_WORDS)]]
    read = backend.encode_batch_fast(texts, add_special_tokens=False)
    return any(not no_words.issuperset(one.ids) for one in read)
