"""Text on a terminal, as it appears: every letter is shown, and none is obeyed."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from armd import cli
from armd.commands.terminal_view import coloured, pieces
from armd.data.tokenizer import byte_tokenizer


def decode(ids: list[int]) -> str:
    return byte_tokenizer().backend.decode(ids, skip_special_tokens=False)


def test_pieces_make_up_the_text() -> None:
    assert pieces(list("aü€b".encode()), decode) == ["a", "", "ü", "", "", "€", "b"]
    assert pieces([97, None, 98], decode) == ["a", "·", "b"]


def test_a_terminal_obeys_nothing_that_appears() -> None:
    ids = list(b"a\x1b]0;title\x07b\n")
    given, drawn = [index % 2 == 0 for index in range(len(ids))], [0] * len(ids)
    assert coloured(ids, drawn, 1, decode, given).plain == "a\ufffd]0;title\ufffdb\n"


@pytest.mark.parametrize("verb", ["verify", "generate"])
def test_no_name_of_a_foreign_folder_is_obeyed(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    name = "\x1b]0;title\x07\x1b[2J\x9b31mall is well"
    shutil.copytree(saved, tmp_path / "m")
    (tmp_path / "m" / "sha256.json").write_text(json.dumps({name: "0"}))
    monkeypatch.setattr(sys, "argv", ["armd", verb, str(tmp_path / "m")])
    with pytest.raises(SystemExit):
        cli.main()
    text = "".join(capsys.readouterr())
    assert "all is well" in text and text.replace("\n", "").isprintable(), text
