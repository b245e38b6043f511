"""Every program in examples/ runs, on a model of one thousand weights or so."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

import armd

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TINY = "--d-model 16 --n-layers 2 --n-heads 2 --n-two-stream 1 --length 32 --steps 4 --i-ar 1"
TINY += " --i-perm 2 --rho 4 --sbp-steps 2 --batch-size 4 --micro-batch 4 --warmup 1"
TINY += " --validate-every 0 --checkpoint-every 4 --sample-every 0"


def run(name: str, *words: str) -> None:
    before = sys.argv
    sys.argv = [name, *words]
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "book.txt"
    words = [f"an order of {n} tokens is cut into blocks" for n in range(60)]
    file.write_text("\n\n".join(words))
    return str(file)


@pytest.fixture(scope="module")
def trained(text: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first example, which trains."""
    out = str(tmp_path_factory.mktemp("runs") / "book")
    run("train_on_your_text.py", text, out, *TINY.split())
    return out


def test_fill_blanks(trained: str, capsys: pytest.CaptureFixture) -> None:
    run("fill_blanks.py", trained, "an ____ of 3 tokens")
    said = capsys.readouterr().out
    assert said.count(" of 3 tokens") == 3


def test_score_orders(trained: str, capsys: pytest.CaptureFixture) -> None:
    run("score_orders.py", trained, "an order of 3 tokens")
    assert capsys.readouterr().out.count("perplexity") == 4


def test_lora(trained: str, text: str, tmp_path: Path) -> None:
    run("lora.py", trained, text, str(tmp_path / "merged"), "--steps", "2", "--length", "16")
    old, new = (
        armd.ArmdLM.from_pretrained(trained),
        armd.ArmdLM.from_pretrained(tmp_path / "merged"),
    )
    assert new.state_dict().keys() == old.state_dict().keys()
    assert torch.equal(old.embedding.weight, new.embedding.weight)
    assert not torch.equal(old.layers[0].out.weight, new.layers[0].out.weight)


def test_hf_trainer(trained: str, text: str, tmp_path: Path, unchecked: None) -> None:
    run("hf_trainer.py", trained, text, str(tmp_path / "out"), "--steps", "2")
    old, new = armd.ArmdLM.from_pretrained(trained), armd.ArmdLM.from_pretrained(tmp_path / "out")
    assert not torch.equal(old.embedding.weight, new.embedding.weight)


def test_serve_and_query(trained: str, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("fastapi")
    run("serve_and_query.py", trained, "an ")
    assert len(capsys.readouterr().out) > 1


def test_no_example_is_left_out() -> None:
    tests = Path(__file__).read_text()
    assert all(f'"{file.name}"' in tests for file in EXAMPLES.glob("*.py"))


def test_side_by_side(trained: str, tmp_path: Path) -> None:
    """Every prompt with every number of streams, each text beginning with its prompt."""
    prompts, out = tmp_path / "prompts.txt", tmp_path / "texts.md"
    prompts.write_text("an order\n\nblocks of\n")
    run("side_by_side.py", trained, str(prompts), str(out))
    told = out.read_text()
    assert all(told.count(f"**S = {streams}**") == 2 for streams in (1, 2, 4, 8))
    assert told.count("> an order") == told.count("> blocks of") == 4
