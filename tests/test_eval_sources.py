"""Judged text says what was judged, and how it was written: calls that were taken, prompts among
the texts, ids that were left out. An option that could change nothing is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from eval_models import saved, tiny_armd, tiny_gpt2

from armd.baselines import config_of, model_class
from armd.commands import generate_options
from armd.commands.generate_options import Writing
from armd.data.prepare import Preparation, prepare
from armd.errors import ArmdError
from armd.eval.samples import eval_samples

pytestmark = pytest.mark.usefixtures("unchecked")
SIZES = {"vocab_size": 300, "d_model": 16, "n_layers": 1, "n_heads": 2, "max_length": 32}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tiny_gpt2(), tmp_path_factory.mktemp("judge") / "judge")


@pytest.mark.parametrize(
    ("name", "how", "calls"),
    [
        ("bd3lm-4", {"steps": 1}, 4),  # one a block
        ("transformer-xl", {"steps": 4}, 16),  # one a token
        ("bert-mouth", {"steps": 4}, 4),
        ("armd", {"streams": 4}, 7),
    ],
)
def test_the_calls_that_were_taken_stand_beside_those_that_were_allowed(
    name: str, how: dict[str, Any], calls: int, reader: str, tmp_path: Path, capsys
) -> None:
    torch.manual_seed(0)
    ours = name == "armd"
    model = tiny_armd() if ours else model_class(name)(config_of(name, **SIZES)).eval()
    writer = saved(model, tmp_path / "model")
    words: dict[str, Any] = {"judge": reader, "count": 3, "length": 16, "batch": 2}
    found = eval_samples(writer, device="cpu", **words, **how)
    assert (found["model_calls"], found["batches"]) == (2 * calls, 2)
    assert f"model_calls {2 * calls}, batches 2" in capsys.readouterr().out


def test_options_that_change_nothing_are_refused(reader: str, tmp_path: Path) -> None:
    def refused(source: Path, option: str, **given: Any) -> None:
        with pytest.raises(ArmdError, match=f"leave out --{option}"):
            eval_samples(str(source), judge=reader, count=1, device="cpu", **given)

    lines, parted, running = (tmp_path / name for name in ("a.jsonl", "b.txt", "c.txt"))
    lines.write_text(json.dumps({"text": "some words"}))
    parted.write_text("one text<|endoftext|>two")
    running.write_text("some words " * 9)
    (tmp_path / "d.jsonl").write_text("\n".join(f'{{"text": "{n} words"}}' for n in range(9)))
    made = Preparation(str(tmp_path / "d.jsonl"), "byte", tmp_path / "data", heldout=0.5)
    prepare(replace(made, workers=1))
    writing = {"streams": 2, "steps": 4, "temperature": 0.5, "match_entropy": 2.0}
    for source in (lines, tmp_path / "data"):
        for name, value in writing.items():
            refused(source, name.replace("_", "-"), **{name: value})
    refused(lines, "seed", seed=1)
    refused(lines, "length", length=4)
    refused(parted, "length", length=4)
    refused(tmp_path, "temperature", temperature=0.5, match_entropy=2.0)
    with pytest.raises(ArmdError, match="leave out --temperature"):
        generate_options.check(Writing("model", temperature=0.5, match_entropy=2.0))
    assert eval_samples(str(running), judge=reader, length=4, count=1, device="cpu")["samples"] == 1


@pytest.mark.parametrize("between", ["", "<|endoftext|>\r\n"])
def test_a_text_is_judged_with_its_line_ends(reader: str, tmp_path: Path, between: str) -> None:
    """Those of Windows are other tokens; in JSON lines they are kept."""
    texts = ["a few\r\nwords ", "and\r\nmore"]
    (tmp_path / "a.txt").write_bytes(between.join(texts).encode())
    rows = texts if between else ["".join(texts)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in rows))
    options: dict[str, Any] = {"judge": reader, "count": 2, "device": "cpu"}
    found = [eval_samples(str(tmp_path / name), **options) for name in ("a.txt", "a.jsonl")]
    assert found[0]["text"] == found[1]["text"]
    assert found[0]["mean_tokens"] == found[1]["mean_tokens"]


def test_prompts_are_counted_and_ids_are_left_out_with_the_reason(
    reader: str, tmp_path: Path, capsys
) -> None:
    file = tmp_path / "a.jsonl"
    first = {"text": "some words", "prompt": "some"}
    for more, why in (
        ({}, "samples have none"),
        ({"ids": [1, 2]}, "does not say of which tokenizer"),
    ):
        file.write_text(f"{json.dumps(first | more)}\n{json.dumps({'text': 'two', **more})}\n")
        found = eval_samples(str(file), judge=reader, device="cpu")
        said = capsys.readouterr().out
        assert found["prompts"] == 1 and "1 of the texts hold their prompt" in said
        assert f"own token ids: not judged; the {'file' * bool(more)}" in said and why in said
