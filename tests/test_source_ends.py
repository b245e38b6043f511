"""Laws: the tokenizer beside our weights adds no BOS and no EOS, because the model has a BOS row of
its own; so with AutoTokenizer, too, a converted model is its source. The way back adds them."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from convert_help import source_model  # noqa: E402
from test_gguf_tokenizer import ENDS, llama3, sentencepiece  # noqa: E402
from tokenizers import processors  # noqa: E402
from training_help import tiny  # noqa: E402
from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: E402

import armd  # noqa: E402
from armd import cli  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.convert.to_gguf import to_gguf  # noqa: E402
from armd.convert.to_llama import to_llama  # noqa: E402
from armd.data.dataset import open_dataset  # noqa: E402
from armd.data.prepare import Preparation, prepare  # noqa: E402
from armd.data.source_ends import put_back_ends  # noqa: E402
from armd.data.tokenizer import find_tokenizer  # noqa: E402
from armd.model.causal_armd import ArmdForCausalLM  # noqa: E402
from armd.native import library as native  # noqa: E402
from armd.runtime.atomic_files import write_sums  # noqa: E402
from armd.train.loop import train  # noqa: E402

pytestmark = pytest.mark.usefixtures("unchecked")
TEXT = "the other the"
KINDS = ("template", "sequence", "both ends", "LlamaTokenizer")


def write_tokenizer(kind: str, folder: Path) -> int:
    """As Hugging Face's folders have it, adding BOS, and EOS with "both ends"; its size."""
    made = sentencepiece("metaspace") if kind == "LlamaTokenizer" else llama3()
    bos, eos = ("<s>", "</s>") if kind == "LlamaTokenizer" else ENDS
    end = f" {eos}" if kind == "both ends" else ""
    template = processors.TemplateProcessing(
        single=f"{bos} $A{end}",
        pair=f"{bos} $A{end} {bos}:1 $B:1{end and f'{end}:1'}",
        special_tokens=[(token, made.backend.token_to_id(token)) for token in (bos, eos)],
    )
    parts = [processors.ByteLevel(trim_offsets=False), template]
    made.backend.post_processor = processors.Sequence(parts) if kind == "sequence" else template
    name = "PreTrainedTokenizerFast"
    settings: dict[str, Any] = {"bos_token": bos, "eos_token": eos}
    if kind == "LlamaTokenizer":
        name, settings = kind, settings | {"add_bos_token": True, "unk_token": "<unk>"}
    folder.mkdir(exist_ok=True)
    made.backend.save(str(folder / "tokenizer.json"))
    text = json.dumps({"tokenizer_class": name, **settings})
    (folder / "tokenizer_config.json").write_text(text)
    return made.vocab_size


@pytest.fixture(params=KINDS)
def source(request: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    size = write_tokenizer(request.param, tmp_path / "tokenizer")
    source_model("llama", folder, vocab_size=size)
    write_tokenizer(request.param, folder)
    return folder


def read(folder: Path, text: str = TEXT) -> list[int]:
    return AutoTokenizer.from_pretrained(folder)(text).input_ids


def prepare_text(tokenizer: Path, out: Path) -> None:
    text = out.with_suffix(".txt")
    text.write_text("".join(f"the other then there {i}\n" * 4 for i in range(200)))
    how: dict[str, Any] = {"documents": "line", "heldout": 0.1, "workers": 1}
    prepare(Preparation(str(text), tokenizer=str(tokenizer), out=out, **how))


def test_with_its_own_tokenizer_each_gives_the_same(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "ours"
    convert(str(source), out)
    theirs, ours = read(source), read(out)
    assert ours == armd.load(str(out)).encode(TEXT)
    assert len(theirs) > len(ours)
    theirs = theirs[: 1 + len(ours)]  # an EOS that was added ends no prompt
    first: Any = LlamaForCausalLM.from_pretrained(source).eval()
    second = ArmdForCausalLM.from_pretrained(out).eval()
    masked = armd.ArmdLM.from_pretrained(out).eval()
    one, two = torch.tensor([theirs]), torch.tensor([ours])
    with torch.no_grad():
        logits = first(one).logits
        assert torch.allclose(second(two).logits, logits[:, 1:], atol=1e-3, rtol=0)
        assert torch.allclose(masked(two).logits, logits[:, :-1], atol=1e-3, rtol=0)
    how: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
    wrote = first.generate(one, attention_mask=torch.ones_like(one), **how)
    assert second.generate(two, attention_mask=torch.ones_like(two), **how).equal(wrote[:, 1:])


def test_the_way_back_adds_what_the_source_added(source: Path, tmp_path: Path) -> None:
    convert(str(source), tmp_path / "ours")
    to_llama(str(tmp_path / "ours"), tmp_path / "back")
    before, after = (AutoTokenizer.from_pretrained(at) for at in (source, tmp_path / "back"))
    for text in (TEXT, "", " x", ENDS[0]):
        assert after(text).input_ids == before(text).input_ids
    assert after(TEXT, TEXT).input_ids == before(TEXT, TEXT).input_ids
    files = (json.loads((at / "tokenizer.json").read_text()) for at in (source, tmp_path / "back"))
    assert next(files) == next(files)


def test_a_gguf_file_says_what_the_source_added(source: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    convert(str(source), tmp_path / "ours")
    file = tmp_path / "model.gguf"
    to_gguf(str(tmp_path / "ours"), file, "F32")
    assert gguf.GGUFReader(file).fields["tokenizer.ggml.add_bos_token"].contents() is True
    convert(str(file), tmp_path / "again")
    assert read(tmp_path / "again") == read(tmp_path / "ours")


def test_a_run_s_tokenizer_reads_as_armd_does(tmp_path: Path) -> None:
    named, data, run = tmp_path / "named", tmp_path / "data", tmp_path / "run"
    write_tokenizer("sequence", named)
    prepare_text(named, data)
    train(tiny(data, run, steps=1, i_ar=0, i_perm=0, sbp_steps=0))
    plain = armd.load(str(run)).encode(TEXT)
    assert read(data / "tokenizer") == read(run / "export") == plain == read(named)[1:]
    prepare_text(named, data)


def test_a_tokenizer_with_and_without_them_is_the_same(source: Path, tmp_path: Path) -> None:
    """So a dataset that was prepared before is the converted model's, and the way back knows what
    was added though a dataset lies between."""
    convert(str(source), tmp_path / "ours")
    out = tmp_path / "data"
    prepare_text(source, out)
    converted = find_tokenizer(str(tmp_path / "ours"), (), rows=False)
    open_dataset(out).check_tokenizer(converted.backend)
    converted.save(tmp_path / "saved")
    assert read(tmp_path / "saved") == read(tmp_path / "ours")
    before, after = (
        json.loads((at / "tokenizer_config.json").read_text())["source_adds"]
        for at in (tmp_path / "ours", tmp_path / "saved")
    )
    assert before == after


@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
def test_a_folder_converted_before_is_mended_when_it_is_quantized(
    source: Path, tmp_path: Path
) -> None:
    """Its tokenizer still adds what the source's did."""
    convert(str(source), tmp_path / "ours")
    plain = read(tmp_path / "ours")
    put_back_ends(tmp_path / "ours")
    write_sums(tmp_path / "ours")
    assert read(tmp_path / "ours") != plain
    cli.run(["quantize", str(tmp_path / "ours"), str(tmp_path / "q8"), "--weights", "q8"])
    assert read(tmp_path / "q8") == plain
