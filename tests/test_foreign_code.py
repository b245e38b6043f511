"""Law: no code of a model's or tokenizer's folder is run, however deep the folder asks for it, also
where somebody says yes to whatever is asked."""

import json
import os
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from convert_help import tokenizer_files  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import dynamic_module_utils as modules  # noqa: E402

from armd.data.tokenizer import from_transformers  # noqa: E402
from armd.data.tokenizer_files import is_tokenizer  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.eval.harness_names import by_name  # noqa: E402
from armd.eval.load_model import causal_lm  # noqa: E402
from armd.runtime.foreign_code import no_foreign_code  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code that leaves a trace, and somebody who lets it run."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    (folder := tmp_path / "foreign").mkdir()
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'trace')!r}, 'w').write('x')\nclass Evil: pass\n"
    )
    return folder


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


PARTS = {"question_encoder": {"model_type": "vit"}, "generator": {"model_type": "vit"}}


@pytest.mark.parametrize("named", ["RagTokenizer", "AutoTokenizer", "AutoModel", "by its config"])
def test_a_tokenizer_that_is_made_of_others(folder: Path, tmp_path: Path, named: str) -> None:
    write(folder, "config.json", {"model_type": "rag", **PARTS})
    if named != "by its config":
        write(folder, "tokenizer_config.json", {"tokenizer_class": named})
    asks = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    write(folder, "question_encoder_tokenizer/tokenizer_config.json", asks)
    with pytest.raises(ArmdError, match=r"is no tokenizer|made of others"):
        from_transformers(str(folder))
    assert not (tmp_path / "trace").exists()


def test_a_config_inside_of_a_config(folder: Path, tmp_path: Path) -> None:
    asks = {"auto_map": {"AutoModel": "evil.Evil"}, "name_or_path": str(folder)}
    part = {"model_type": "clap_text_model", **asks}
    kind = {"model_type": "fuyu", "architectures": ["FuyuForCausalLM"], "text_config": part}
    write(folder, "config.json", kind)
    save_file({"a": torch.zeros(4, 4)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ArmdError, match="asks to run code of its own"):
        causal_lm(str(folder), torch.float32)
    assert not (tmp_path / "trace").exists()


def test_the_words_are_those_of_the_file_that_is_there(folder: Path, tmp_path: Path) -> None:
    """In tiktoken's form: its library keeps what it has read, by the name of the file."""
    pytest.importorskip("tiktoken")
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    letters = [bytes([byte]) for byte in range(256)]
    for words in ([b"ab", b"abc"], [b"xy"], []):
        found = [*letters, *words]
        rows = (b"%s %d\n" % (b64encode(word), place) for place, word in enumerate(found))
        (folder / "tiktoken.model").write_bytes(b"".join(rows))
        sizes = [len(ids) for ids in from_transformers(str(folder)).encode_texts(["abc", "xy"])]
        assert sizes == [1 if b"abc" in words else 3, 1 if b"xy" in words else 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": {"300000000": {"content": "a"}}},
        {"added_tokens_decoder": {"9" * 5000: {"content": "a"}}},
        {"extra_ids": 10**9},
    ],
)
def test_no_number_of_words_is_believed(folder: Path, settings: dict[str, Any]) -> None:
    """A word would be made for each number below; the length of texts is no such number."""
    tokenizer_files(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", config | {"model_max_length": 10**30})
    assert from_transformers(str(folder)).vocab_size
    write(folder, "tokenizer_config.json", config | settings)
    with pytest.raises(ArmdError, match="words; put its copy back"):
        from_transformers(str(folder))


def test_a_name_that_lm_eval_looks_up_is_no_folder_of_the_working_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be run, or its figures would bear the other's name."""
    monkeypatch.chdir(tmp_path)
    asked = list[str]()
    load = by_name(lambda path, **_: asked.append(path))
    for name in ("foreign", "foreign/evil.py"):
        with pytest.raises(ArmdError, match="working folder would be taken"):
            load(name)
        load(path=f"./{name}")
    for name in (str(folder), "accuracy", "json", "EleutherAI/lambada_openai"):
        load(name)
    assert asked[2:] == [str(folder), "accuracy", "json", "EleutherAI/lambada_openai"]


def test_what_a_task_does_wrong_is_no_defect_of_ours() -> None:
    """Also where a function of ours stands between: it looks at the name alone."""
    pytest.importorskip("lm_eval")
    from armd.eval.harness import is_of_armd
    from armd.eval.harness_options import whole_number

    def load(path: str) -> None:
        raise KeyError(path)

    try:
        by_name(load)("a-task")
    except KeyError as error:
        assert not is_of_armd(error)
    try:
        whole_number("an option", "1.5", 0)
    except ArmdError as error:
        assert is_of_armd(error)
    else:
        raise AssertionError


def test_many_at_once_and_nothing_stays(folder: Path) -> None:
    """A library that is imported into somebody's program leaves transformers as it was."""
    before, meet = (modules.TIME_OUT_REMOTE_CODE, dict(os.environ)), Barrier(8)

    def inside(number: int) -> int:
        with no_foreign_code(number):
            meet.wait(60)
            return modules.TIME_OUT_REMOTE_CODE + len(os.environ["TIKTOKEN_CACHE_DIR"])

    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(inside, range(8))} == {0}
    with pytest.raises(ValueError, match="another"), no_foreign_code(folder):
        raise ValueError("another")
    assert (modules.TIME_OUT_REMOTE_CODE, dict(os.environ)) == before


def test_tokenizers_of_every_kind_are_still_read(folder: Path) -> None:
    tokenizer_files(folder)
    kinds = ("GPT2Tokenizer", "PreTrainedTokenizerFast", "Qwen2TokenizerFast", "TokenizersBackend")
    for name in kinds:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        write(folder, "tokenizer_config.json", config | {"tokenizer_class": name})
        assert is_tokenizer(name) and from_transformers(str(folder)).vocab_size
    assert not any(map(is_tokenizer, ("LlamaForCausalLM", "pipeline", "AutoProcessor", "", 5)))
