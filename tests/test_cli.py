"""Every verb of the command line leads to code, and every group of verbs lists its own."""

import importlib
import inspect
import re
import sys

import pytest

from armd.cli import VERBS, main, run


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
