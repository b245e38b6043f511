"""Laws: what a folder says of itself is compared with what it holds, wherever a verb opens it, and
no code that lies in the working folder is run."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from convert_help import source_model  # noqa: E402
from patience import PATIENCE  # noqa: E402
from tokenizers import Regex, Tokenizer, pre_tokenizers  # noqa: E402
from training_help import prepare_corpus, tiny  # noqa: E402

from armd import cli  # noqa: E402
from armd.data.prepare import Preparation, prepare  # noqa: E402
from armd.data.tokenizer import TextTokenizer, byte_tokenizer, with_ends  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.eval.judge import load_judge  # noqa: E402
from armd.eval.load_model import load  # noqa: E402
from armd.serve.detokenizer import ServerTokenizer  # noqa: E402
from armd.train.loop import train  # noqa: E402


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_start_that_is_damaged_or_lies_is_refused(tmp_path: Path) -> None:
    data = prepare_corpus(tmp_path)
    run = train(tiny(data, tmp_path / "run"))
    shutil.copytree(run / "export", flipped := tmp_path / "flipped")
    weights = bytearray((flipped / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (flipped / "model.safetensors").write_bytes(weights)
    shutil.copytree(run / "export", lying := tmp_path / "lying")
    (lying / "sha256.json").unlink()
    change(lying / "config.json", n_layers=300_000)
    missing = tmp_path / "missing"
    for folder, said in ((flipped, "damaged"), (lying, "does not fit"), (missing, "no folder")):
        out = tmp_path / f"from-{folder.name}"
        with pytest.raises(ArmdError, match=said):
            train(tiny(data, out, start=str(folder)))
        assert not out.exists()


def test_a_start_that_is_refused_leaves_nothing_so_that_its_fix_works(tmp_path: Path) -> None:
    data, short = prepare_corpus(tmp_path), {"steps": 1, "sbp_steps": 0, "validate_every": 0}
    run, out = train(tiny(data, tmp_path / "run", **short)), tmp_path / "out"
    for said, start, wrong in (
        ("other sizes", run / "export", {"d_model": 32}),
        ("has n_heads 2, this recipe 1", run, {"n_heads": 1}),  # all shapes are the same
        ("has n_heads 2, this recipe 1", run, {"n_heads": 1, "start_step": 1, "steps": 9}),
        ("no checkpoint of step 7", run, {"start_step": 7, "steps": 9}),
        ("less than one window", run, {"length": 40_000}),
    ):
        with pytest.raises(ArmdError, match=said):
            train(tiny(data, out, start=str(start), **(short | wrong)))
        assert not out.exists()
    out.mkdir()
    with pytest.raises(ArmdError, match="other sizes"):
        train(tiny(data, out, start=str(run), **short, d_model=32))
    assert out.is_dir() and not list(out.iterdir())  # what was there before stays
    assert train(tiny(data, out, start=str(run / "export"), **short)) == out


@pytest.mark.parametrize("opening", [load, load_judge])
def test_layers_of_a_causal_lm_are_counted_before_they_are_made(tmp_path: Path, opening) -> None:
    source_model("llama", tmp_path / "source")
    change(tmp_path / "source" / "config.json", num_hidden_layers=300_000)
    with pytest.raises(ArmdError, match="num_hidden_layers 300000 is more than"):
        opening(str(tmp_path / "source"))


def test_options_that_a_dataset_has_and_a_call_has_not_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "text {n}"}}\n' for n in range(50)))
    asked = {"tokenizer": "byte", "out": tmp_path / "data", "workers": 1}
    prepare(Preparation(str(tmp_path / "text.jsonl"), wrap=16, **asked))
    with pytest.raises(ArmdError, match="wrap 16, now None"):
        prepare(Preparation(str(tmp_path / "text.jsonl"), **asked))


def test_a_recipe_that_cannot_be_is_not_inspected(tmp_path: Path) -> None:
    run = train(tiny(prepare_corpus(tmp_path), tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    config["optimizer"]["batch_size"] = 2**62
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArmdError, match="batch"):
        cli.run(["inspect", str(run), "--step", "1"])


def test_code_in_the_working_folder_is_not_run(tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    (here / "text.jsonl").write_text("".join(f'{{"text": "text {n}"}}\n' for n in range(50)))
    for name in ("multiprocessing", "pickle", "struct"):
        (here / f"{name}.py").write_text("open('run', 'w').close()\n")
    code = "from armd.cli import main\nif __name__ == '__main__':\n    main()\n"
    (script := tmp_path / "armd").write_text(code)
    words = ["prepare", "text.jsonl", "--tokenizer", "byte", "--out", "data", "--workers", "2"]
    root = str(Path(cli.__file__).parent.parent)
    subprocess.run(
        [sys.executable, str(script), *words],
        cwd=here,
        env={"PYTHONPATH": root, "PATH": "", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert (here / "data").is_dir() and not (here / "run").exists()


def panicking() -> Tokenizer:
    made = byte_tokenizer().backend
    split = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])
    return made


def test_a_tokenizer_that_gives_up_on_a_text_is_one_line() -> None:
    """Its own exception is no Exception, and would end a worker or be a 500."""
    tokenizer = with_ends(TextTokenizer(panicking(), {}), rows=False)
    with pytest.raises(ArmdError, match="gives up on a text"):
        ServerTokenizer(tokenizer, 4096).encode("a" * 200 + "!", "prompt")


def test_a_start_of_another_tokenizer_or_dataset_is_refused(tmp_path: Path) -> None:
    """Its embeddings would be of other tokens; a step to go on from, of other batches."""
    data, short = prepare_corpus(tmp_path), {"steps": 4, "sbp_steps": 0, "validate_every": 0}
    run = train(tiny(data, tmp_path / "run", keep_at=(3,), **short))
    start = str(run)
    (tmp_path / "other.txt").write_text("".join(f"another text {n}\n" for n in range(200)))
    made = Preparation(str(tmp_path / "other.txt"), "bpe:260", tmp_path / "words")
    prepare(replace(made, documents="line", workers=1))
    with pytest.raises(ArmdError, match="another tokenizer"):
        train(tiny(tmp_path / "words", tmp_path / "one", start=start, **short))
    prepare(replace(made, tokenizer="byte", out=tmp_path / "bytes", documents="line", workers=1))
    assert train(tiny(tmp_path / "bytes", tmp_path / "two", start=start, **short))
    with pytest.raises(ArmdError, match="is not the dataset that"):
        cli.run(["inspect", start, "--step", "1", "--data", str(tmp_path / "bytes")])
    with pytest.raises(ArmdError, match="another dataset"):
        train(tiny(tmp_path / "bytes", tmp_path / "three", start=start, start_step=3, **short))
    with pytest.raises(ArmdError, match="another model's"):
        again = tiny(data, tmp_path / "four", start=start, start_step=3, **short)
        train(replace(again, network=replace(again.network, n_layers=1)))


def test_tokens_of_a_start_are_known_by_its_tokenizer_not_by_their_number(tmp_path: Path) -> None:
    short = {"steps": 1, "sbp_steps": 0, "validate_every": 0}
    for name in ("one", "other"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name * 3} {n}\n" for n in range(200)))
        made = Preparation(str(tmp_path / f"{name}.txt"), "bpe:260", tmp_path / name)
        prepare(replace(made, documents="line", workers=1))
    run = train(tiny(tmp_path / "one", tmp_path / "run", **short))
    shutil.copytree(run / "export", alone := tmp_path / "alone")
    with pytest.raises(ArmdError, match="another tokenizer"):
        train(tiny(tmp_path / "other", tmp_path / "refused", start=str(alone), **short))
    assert train(tiny(tmp_path / "one", tmp_path / "taken", start=str(alone), **short))
    (alone / "tokenizer.json").unlink()  # then nothing says which tokens they are
    (alone / "sha256.json").unlink()
    assert train(tiny(tmp_path / "other", tmp_path / "unknown", start=str(alone), **short))
