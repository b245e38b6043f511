"""Every verb of the command line leads to code, and every group of verbs lists its own."""

import importlib
import sys

import pytest

from armd.cli import VERBS, main


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
