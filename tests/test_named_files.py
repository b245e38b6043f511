"""Laws: a pipe that a user names is read to its end, as `<(...)` in a shell; what has no end, such
as /dev/zero, is said in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from armd.commands import generate_inputs
from armd.commands.generate_inputs import read_prompts
from armd.errors import ArmdError
from armd.train.command import parse

WORDS = ["--data", "data", "--out", "out"]


@contextmanager
def pipe(text: str) -> Iterator[Path]:
    """What a shell makes of <(...)."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    try:
        yield Path(f"/dev/fd/{reader}")
    finally:
        os.close(reader)


def test_prompts_come_through_a_pipe() -> None:
    with pipe("Once\r\n\nTwo words\n") as file:
        assert read_prompts(file) == ["Once", "Two words"]


@pytest.mark.parametrize("text", ['{"seed": 7, "model": "mdlm"}', 'seed = 7\nmodel = "mdlm"\n'])
def test_a_config_comes_through_a_pipe(text: str) -> None:
    """Though it is asked for its model first."""
    with pipe(text) as file:
        recipe = parse(["mini", "--config", str(file), *WORDS])
    assert (recipe.seed, recipe.model) == (7, "mdlm")


def test_what_has_no_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_inputs, "MOST_BYTES", 1 << 20)
    for name in ("endless.txt", "endless.jsonl"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(ArmdError, match="more than 1 MB; name a file"):
            read_prompts(tmp_path / name)
    with pytest.raises(ArmdError, match="more than 16 MB; name a file"):
        parse(["mini", "--config", "/dev/zero", *WORDS])
