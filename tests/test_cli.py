"""Every verb of the command line leads to code, and every group of verbs lists its own."""

import importlib
import inspect
import os
import re
import sys
from pathlib import Path

import pytest

from armd.cli import VERBS, check_figures, main, run
from armd.errors import ArmdError


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_a_function_that_exists(verb: str) -> None:
    module, function, words = VERBS[verb]
    assert callable(getattr(importlib.import_module(f"armd.{module}"), function)) and words


@pytest.mark.parametrize("group", ["eval", "bench"])
def test_help_of_a_group_lists_its_verbs(
    group: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["armd", group, "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert [f"armd {verb} " in shown for verb in VERBS] == [
        verb.startswith(f"{group} ") for verb in VERBS
    ]


@pytest.mark.parametrize("verb", ["generate", "serve", "eval ppl", "plot", "train mini"])
def test_the_help_speaks_of_no_none(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([*verb.split(), "--help"])
    text = capsys.readouterr().out
    assert "{None}" not in text and "--" in text


def test_every_field_of_a_recipe_has_words() -> None:
    from armd.train import recipe

    lines = inspect.getsource(recipe).splitlines()
    fields = [i for i, line in enumerate(lines) if re.match(r"    \w+: [^=]+ = (?!field)", line)]
    assert len(fields) > 40
    for at in fields:
        assert lines[at + 1].startswith('    """'), lines[at]


@pytest.mark.parametrize("word", ["--json {}", "--json={}"])
@pytest.mark.parametrize("name", ["poem.txt", "prompts.jsonl", "figures.json"])
def test_figures_replace_figures_alone(word: str, name: str, tmp_path: Path) -> None:
    """Whatever the verb: the text or the prompts that they are of stay."""
    file = tmp_path / name
    file.write_text('{"prompt": "mine"}\n' if "json" in name else "a poem\n")
    words = ["plan", "mini", *word.format(file).split()]
    if name == "figures.json":
        return check_figures(words)
    with pytest.raises(ArmdError, match="holds no figures"):
        check_figures(words)


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "figures.json"
    os.mkfifo(pipe)
    with pytest.raises(ArmdError, match="named pipe"):
        check_figures(["plan", "mini", "--json", str(pipe)])
    check_figures(["plan", "mini", "--json", "/dev/stdout"])
