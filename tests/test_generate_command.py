"""`armd generate` from end to end: a saved model, prompts, templates, samples on disk, mistakes."""

import json
import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import pytest
from forked import Forked
from patience import PATIENCE
from small import case_of

from armd import cli
from armd.data.template import fill_in
from armd.data.tokenizer import byte_tokenizer, with_ends
from armd.errors import ArmdError
from armd.eval.entropy import match_temperature, mean_entropy, search_temperature
from armd.pretrained import load_model, load_tokenizer

ROOT = Path(__file__).resolve().parent.parent


def save_tokenizer(folder: Path) -> None:
    with_ends(byte_tokenizer(), rows=False).save(folder / "aside")
    for file in (folder / "aside").iterdir():
        file.rename(folder / file.name)
    (folder / "aside").rmdir()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, its export with a byte tokenizer; EOS is 256."""
    run = tmp_path_factory.mktemp("run")
    case_of("random", 4, 1, vocab_size=257, n_two_stream=2).model.save_pretrained(run / "export")
    save_tokenizer(run / "export")
    return run


def run(*words: object) -> list[dict]:
    """Run the command; the samples of --out, if asked for."""
    again = ["--overwrite"] if "--out" in words else []
    cli.run(["generate", *map(str, words), *again])
    if "--out" not in words:
        return []
    file = Path(str(words[words.index("--out") + 1]))
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def same(some: list[dict], others: list[dict]) -> bool:
    """The same samples; log-probabilities up to what another batch rounds otherwise."""
    for one, other in zip(some, others, strict=True):
        pairs = zip(one.pop("logp"), other.pop("logp"), strict=True)
        if not all(p is q or abs(p - q) < 1e-4 for p, q in pairs):
            return False
    return some == others


def test_samples_do_not_depend_on_the_batch(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Hello\nA longer prompt\n\nx\n", "utf-8")
    words = (folder, "--prompts", tmp_path / "prompts.txt", "--length", 30, "--count", 2)
    words += ("--streams", 3, "--out", tmp_path / "out.jsonl")
    records, *others = [run(*words, "--batch", batch) for batch in (6, 4, 1)]
    assert all(len(record["logp"]) == len(record["ids"]) for record in records)
    assert same(deepcopy(records), others[0]) and same(deepcopy(records), others[1])
    prompts = ["Hello", "Hello", "A longer prompt", "A longer prompt", "x", "x"]
    assert [record["prompt"] for record in records] == prompts
    assert [record["index"] for record in records] == list(range(6))
    assert len({record["text"] for record in records}) == 6
    for record in records:
        given = len(record["prompt"])
        assert record["ids"][:given] == list(record["prompt"].encode())
        assert len(record["ids"]) == len(record["steps"])
        assert [step is None for step in record["steps"]].count(True) == given
        assert record["settings"]["streams"] == 3 and record["settings"]["length"] == 30
        assert record["text"].startswith(record["prompt"])


def test_figures_and_the_last_line(folder: Path, tmp_path: Path, capsys) -> None:
    run(folder, "--length", 40, "--streams", 4, "--no-stop", "--json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["model_calls"], figures["tokens"], figures["texts"]) == (13, 40, 1)
    assert capsys.readouterr().err.startswith("13 model calls, 40 tokens, ")


WAYS = [("--order", "left-to-right"), ("--order", "random"), ("--order", "masking:4")]


@pytest.mark.parametrize("way", [*WAYS, ("--candidates", 3)])
def test_templates_keep_their_words(folder: Path, tmp_path: Path, way: tuple) -> None:
    words = (folder, "--template", "The ____ jumped over __.", *way, "--count", 3)
    fixed = run(*words, "--blank-lengths", "4,6", "--out", tmp_path / "fixed.jsonl")
    for record in fixed:
        steps = [step is None for step in record["steps"]]
        known = [True] * 3 + [False] * 4 + [True] * 12 + [False] * 6 + [True]
        assert steps == known
        given = bytes(i for i, g in zip(record["ids"], known, strict=True) if g)
        assert given == b"The jumped over."
    drawn = run(*words, "--out", tmp_path / "drawn.jsonl")
    again = run(*words, "--out", tmp_path / "again.jsonl", "--batch", 1)
    assert same(drawn, again)
    assert len({len(record["ids"]) for record in drawn}) > 1


def test_json_prompts_and_stopping(folder: Path, tmp_path: Path) -> None:
    """The EOS that ends a text is among its ids, not in its text; behind it there is nothing."""
    lines = [json.dumps({"prompt": "a\nb"}), json.dumps({"text": "ü"})]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), "utf-8")
    words = (folder, "--prompts", tmp_path / "prompts.jsonl", "--length", 64, "--count", 16)
    words += ("--out", tmp_path / "out.jsonl", "--temperature", 1.5, "--batch", 32)
    stopped, free = run(*words), run(*words, "--no-stop")
    assert [record["prompt"] for record in free][::16] == ["a\nb", "ü"]
    ended = 0
    for short, long in zip(stopped, free, strict=True):
        end = long["ids"].index(256) + 1 if 256 in long["ids"] else 64
        ended += end < 64
        assert short["ids"] == long["ids"][:end]
        assert "<|endoftext|>" not in short["text"]
    assert ended


def test_a_terminal_obeys_nothing_that_a_model_writes(folder: Path, capsys, monkeypatch) -> None:
    words = ["generate", str(folder), "--prompt", "a\x1b]0;title\x07b\tc", "--length", "20"]
    cli.run(words)
    assert "\x1b]0;title\x07b\tc" in capsys.readouterr().out  # a pipe has every byte
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.run(words)
    assert "a\ufffd]0;title\ufffdb\tc" in capsys.readouterr().out


def test_without_a_terminal_show_prints_plain_text(folder: Path, capsys) -> None:
    run(folder, "--prompt", "Hi", "--length", 10, "--show")
    out = capsys.readouterr().out
    assert out.startswith("Hi") and "\x1b" not in out


def test_match_entropy_finds_its_temperature(folder: Path, tmp_path: Path) -> None:
    words = (folder, "--length", 32, "--count", 16, "--match-entropy", 4, "--no-stop")
    run(*words, "--batch", 16, "--json", tmp_path / "figures.json", "--out", tmp_path / "o.jsonl")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert abs(figures["entropy_bits"] - 4) <= 0.02
    assert figures["settings"]["temperature"] < 1


def test_entropy_in_bits_and_its_reach(folder: Path) -> None:
    texts = ([1, 1, 1, 1], [1, 2, 1, 2], [0, 1, 2, 3])
    assert [mean_entropy([text]) for text in texts] == [0.0, 1.0, 2.0]
    with pytest.raises(ArmdError, match=r"out of reach.* give 2\.[0-9]+ to 4\.[0-9]+;"):
        match_temperature(load_model(folder), 9.0, length=32, count=2)
    rows = {True: [[1, 1, 1, 1]], False: [[1, 2, 3, 4]]}
    with pytest.raises(ArmdError, match="no temperature gives"):
        search_temperature(lambda temperature: rows[temperature < 1], 1.0)


def test_blanks_take_the_space_before_them() -> None:
    """One: a second one, or a tab, is the text's own."""
    tokens, known = fill_in("A ____, b  __", lambda text: list(text.encode()), lengths=[2])
    assert bytes(t for t, k in zip(tokens, known, strict=True) if k) == b"A, b "
    assert known == [True, False, False, True, True, True, True, False, False]
    tokens, known = fill_in("A\t____", lambda text: list(text.encode()), lengths=[1])
    assert bytes(t for t, k in zip(tokens, known, strict=True) if k) == b"A\t"


BAD = [
    (["--length", 3, "--prompt", "long prompt"], "raise --length or cut the prompt"),
    (["--prompt", "x" * 70], "the model takes 64"),
    (["--length", 65], "passes the model's 64"),
    (["--streams", 0], "streams 0"),
    (["--streams", 60, "--length", 40], "streams 60"),
    (["--template", "no blanks"], "two or more underscores"),
    (["--template", "a __", "--blank-lengths", "1,2"], "do not fit 1 blanks"),
    (["--template", "a __", "--blank-lengths", "x"], "such as 4 or 3,5"),
    (["--template", "a __", "--blank-lengths", "99"], "the model takes 64"),
    (["--template", "a __", "--prompt", "b"], "one of --prompt"),
    (["--template", "a __", "--length", 9], "has its own length"),
    (["--candidates", 2], "blanks of a --template"),
    (["--template", "a __", "--candidates", 2, "--order", "random"], "without --order"),
    (["--template", "a __", "--candidates", 0], "between 1 and 1024"),
    (["--blank-lengths", "3"], "give one"),
    (["--temperature", 0, "--top-p", 0.9], "raise the temperature"),
    (["--temperature", -1], "temperature -1"),
    (["--order", "sideways"], "left-to-right, random or masking:T"),
    (["--order", "random", "--streams", 2], "leave out --streams"),
    (["--order", "masking:0"], "at least 1 step"),
    (["--order", "masking:" + "9" * 5000], "at least 1 step"),
    (["--template", "a __", "--blank-lengths", "9" * 5000], "such as 4 or 3,5"),
    (["--prompts", "missing.txt"], "name a file of prompts"),
    (["--prompts", "prompts.csv"], "must be .txt"),
    (["--count", 0], "--count 0"),
    (["--device", "nowhere"], "no device 'nowhere'"),
    (["--match-entropy", 20, "--length", 16], "out of reach"),
    (["--out", "/proc/none/x.jsonl"], "name another file"),
    (["--weights", "int8"], "C compiler"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=lambda value: str(value)[:30])
def test_a_mistake_is_one_line(folder: Path, capsys, words: list, said: str, monkeypatch) -> None:
    if "int8" in words:
        monkeypatch.setattr("armd.native.packed.library", lambda: None)
    monkeypatch.setattr(sys, "argv", ["armd", "generate", str(folder), *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.startswith("armd: ") and err.count("\n") == 1
    assert said in err


def test_prompt_files_that_are_no_text(folder: Path, tmp_path: Path) -> None:
    for name, content, said in (
        ("latin.txt", "café".encode("latin-1"), "no UTF-8"),
        ("empty.txt", b"\n\n", "no prompts"),
        ("bad.jsonl", b'{"prompt": "x"}\nnot json\n', "line 2"),
        ("other.jsonl", b'{"words": "x"}\n', "line 1"),
        ("list.jsonl", b"[1]\n", "line 1"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArmdError, match=said):
            run(folder, "--prompts", tmp_path / name)


def test_folders_that_hold_no_model_of_ours(folder: Path, tmp_path: Path) -> None:
    for kind in ("empty", "foreign", "damaged", "wordless", "larger"):
        (tmp_path / kind).mkdir()
    with pytest.raises(ArmdError, match="no folder"):
        load_model(tmp_path / "missing")
    with pytest.raises(ArmdError, match="no model in"):
        load_model(tmp_path / "empty")
    for kind in ("foreign", "damaged", "wordless", "larger"):
        for name in ("config.json", "model.safetensors"):
            (tmp_path / kind / name).write_bytes((folder / "export" / name).read_bytes())
    config = json.loads((folder / "export" / "config.json").read_text())
    (tmp_path / "foreign" / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(ArmdError, match="'gpt2', not of armd"):
        load_model(tmp_path / "foreign")
    whole = (folder / "export" / "model.safetensors").read_bytes()
    (tmp_path / "damaged" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArmdError, match="damaged"):
        load_model(tmp_path / "damaged")
    (tmp_path / "damaged" / "config.json").write_text("{")
    with pytest.raises(ArmdError, match="damaged"):
        load_model(tmp_path / "damaged")
    with pytest.raises(ArmdError, match="no tokenizer"):
        load_tokenizer(tmp_path / "wordless")
    save_tokenizer(tmp_path / "larger")
    with pytest.raises(ArmdError, match="writes 257 tokens, but the model knows 200"):
        load_tokenizer(tmp_path / "larger", vocab_size=200)
    assert load_model(folder).config.vocab_size == load_tokenizer(folder).vocab_size == 257


def test_an_interrupt_keeps_what_was_written(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = (folder, "--count", 100_000, "--length", 60, "--batch", 1, "--no-stop", "--out", out)
    with Forked(["generate", *map(str, words)], stderr=subprocess.PIPE) as process:
        while process.poll() is None and (not out.exists() or out.read_text().count("\n") < 3):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        assert process.wait() == 130 and "Traceback" not in err
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["index"] for record in records] == list(range(len(records)))
    assert f"kept {len(records)} samples in" in err
    again = run(*words[:2], 3, *words[3:-1], tmp_path / "again.jsonl")
    assert same(records[:3], again)


def test_blanks_of_other_lengths_are_not_resumed(saved: Path, tmp_path: Path) -> None:
    """Whether they were drawn before or now, and although the longest is as long."""
    kinds = ([], ["--blank-lengths", "8"], ["--blank-lengths", "3"])
    fixed = ["generate", str(saved), "--template", "the ____", "--count", "12"]
    for number, before in enumerate(kinds):
        out = tmp_path / f"{number}.jsonl"
        cli.run([*fixed, *before, "--out", str(out)])
        written = out.read_bytes()
        for now in kinds:
            if now == before:
                cli.run([*fixed, *now, "--out", str(out), "--resume"])
            else:
                with pytest.raises(ArmdError, match=r"written for other|other settings"):
                    cli.run([*fixed, *now, "--out", str(out), "--resume"])
            assert out.read_bytes() == written


def test_processes_share_the_prompts(folder: Path, tmp_path: Path) -> None:
    words = (folder, "--count", 5, "--length", 20, "--batch", 2, "--out")
    alone = run(*words, tmp_path / "alone.jsonl")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    launcher += ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    command = [*launcher, "-m", "armd.cli", "generate", *words, tmp_path / "shared.jsonl"]
    options = {"env": os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}}
    options |= {"stderr": subprocess.PIPE, "timeout": PATIENCE}
    done = subprocess.run([str(word) for word in command], **options)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "shared.jsonl").read_text("utf-8").splitlines()
    assert same([json.loads(line) for line in lines], alone)
    assert {path.name for path in tmp_path.iterdir()} == {"alone.jsonl", "shared.jsonl"}
