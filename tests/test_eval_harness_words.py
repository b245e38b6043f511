"""What lm-eval says of its command line is one line; a defect of ours keeps its traceback."""

import sys

import pytest

from armd.errors import first_line

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'armd[eval]'")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("limit", ["-1", "0", "nan", "inf"])
def test_a_limit_that_nothing_fits_is_said_in_a_line(limit, monkeypatch, capsys):
    from armd.eval.harness import main

    monkeypatch.setattr(sys, "argv", ["lm_eval", "--model", "armd", "-L", limit, "--tasks", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("armd: --limit")


def test_a_folder_in_the_place_of_a_kind_of_model_is_said_in_a_line(monkeypatch, capsys):
    from lm_eval import __main__
    from lm_eval.api.registry import get_model

    from armd.eval.harness import main

    monkeypatch.setattr(sys, "argv", ["lm_eval", "--model", "runs/book", "--tasks", "x"])
    # what it does with that word, once it has looked through its thousands of tasks
    monkeypatch.setattr(__main__, "cli_evaluate", lambda: get_model("runs/book"))
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert ended.value.code == 2 and line.startswith("armd: lm_eval has no kind of model")
    assert "'runs/book'" in line and "--model armd --model_args pretrained=FOLDER" in line


@pytest.mark.parametrize("error", [ValueError("a word\nmore"), KeyError("x"), ImportError("wandb")])
def test_what_lm_eval_raises_is_said_in_a_line(error, monkeypatch, capsys):
    from lm_eval import __main__

    from armd.eval import harness

    def fails():
        raise error

    monkeypatch.setattr(sys, "argv", ["lm_eval", "--tasks", "x"])
    monkeypatch.setattr(__main__, "cli_evaluate", fails)
    with pytest.raises(SystemExit) as ended:
        harness.main()
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert ended.value.code == 2 and line.startswith(f"armd: lm_eval: {type(error).__name__}")
    assert "more" not in line and "LMEVAL_LOG_LEVEL=DEBUG" in line
    # what fails in our own code keeps its traceback
    monkeypatch.setattr(__main__, "cli_evaluate", lambda: first_line(Unspeakable()))
    with pytest.raises(RuntimeError):
        harness.main()
    monkeypatch.setenv("LMEVAL_LOG_LEVEL", "debug")
    monkeypatch.setattr(__main__, "cli_evaluate", fails)
    with pytest.raises(type(error)):
        harness.main()
