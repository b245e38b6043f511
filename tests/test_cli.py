"""Every verb of the command line leads to code, and every group of verbs lists its own."""

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from armd.cli import VERBS, check_figures, main, run
from armd.errors import ArmdError
from armd.runtime.processes import process_group
from armd.runtime.standard_streams import NARROWEST, widen


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
@pytest.mark.parametrize(
    "name", ["poem.txt", "prompts.jsonl", "figures.json", "config.json", "adapter_config.json"]
)
def test_figures_replace_figures_alone(word: str, name: str, tmp_path: Path) -> None:
    """Whatever the verb: the text or the prompts that they are of stay."""
    file = tmp_path / name
    file.write_text('{"prompt": "mine"}\n' if "json" in name else "a poem\n")
    words = ["plan", "mini", *word.format(file).split()]
    if name == "figures.json":
        return check_figures(words)
    with pytest.raises(ArmdError, match="holds no figures"):
        check_figures(words)


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "abc"},
        {"WORLD_SIZE": "-1"},
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "9" * 30},
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2", "RANK": "x", "MASTER_PORT": "1"},
        {"WORLD_SIZE": "2", "RANK": "2", "MASTER_PORT": "1"},
        {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "99999999"},
        {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"},
    ],
    ids=str,
)
def test_half_of_torchruns_variables_are_a_mistake(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArmdError, match="torchrun"), process_group():
        pass


def test_a_variable_without_a_value_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "")
    with process_group() as alone:
        assert alone.world == 1


def test_a_closed_output_takes_no_files_number() -> None:
    """Else what is printed would go into the file that is opened next."""
    code = (
        "import os, sys; sys.stdout = None; os.close(1)\n"
        "from armd.runtime.standard_streams import mend_streams\n"
        "mend_streams(); print('lost'); assert not sys.stdout.isatty()\n"
        "assert os.open(os.devnull, os.O_RDONLY) > 2 and os.fstat(1)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (made.returncode, made.stdout, made.stderr) == (0, b"", b"")


@pytest.mark.parametrize("columns", ["1", "5"])
def test_the_help_has_room(columns: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "argv", ["armd", "quantize", "--help"])
    widen()
    assert shutil.get_terminal_size().columns >= NARROWEST
    with pytest.raises(SystemExit):
        main()
    assert "--weights" in capsys.readouterr().out


def test_a_folder_for_figures_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ArmdError, match="is a folder; give --json the name of a file"):
        check_figures(["plan", "mini", f"--json={tmp_path}"])


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "figures.json"
    os.mkfifo(pipe)
    with pytest.raises(ArmdError, match="named pipe"):
        check_figures(["plan", "mini", "--json", str(pipe)])
    check_figures(["plan", "mini", "--json", "/dev/stdout"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["--help"], ["plan", "mini"], ["train", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_takes_no_more_is_one_line(words: list[str], unbuffered: str) -> None:
    command = [sys.executable, "-m", "armd.cli", *words]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        out = {"stdout": full, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command, **out, env=environment)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and "No space left on device" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_figures_are_written_though_nothing_can_be_printed(unbuffered: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "armd.cli", "plan", "mini", "--json", "figures.json"]
    with open("/dev/full", "w") as full:
        out = {"stdout": full, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
        done = subprocess.run(command, **out, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 2 and "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads((tmp_path / "figures.json").read_text())["preset"] == "mini"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_figures_are_written_though_nobody_reads_what_is_printed(
    unbuffered: str, tmp_path: Path
) -> None:
    """As behind `| head -1`."""
    command = [sys.executable, "-m", "armd.cli", "plan", "mini", "--json", "figures.json"]
    reader, writer = os.pipe()
    os.close(reader)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads((tmp_path / "figures.json").read_text())["preset"] == "mini"


def test_threads_that_the_system_refuses_are_one_line(monkeypatch, capsys) -> None:
    def refuse(words: list[str]) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sys, "argv", ["armd", "plan"])
    monkeypatch.setattr("armd.cli.run", refuse)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "starts no more threads" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "ValueError"])
def test_an_interrupt_that_is_lost_leaves_no_traceback(kind: str) -> None:
    """Ctrl-C while Python frees an object; of other errors there Python tells."""
    script = (
        "import sys; sys.argv = ['armd', '--version']\n"
        "class Freed:\n    def __del__(self): raise " + kind + "\n"
        "import armd.cli as cli\n"
        "cli.answer = lambda words: Freed() and None\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ("Traceback" in done.stderr) == (kind == "ValueError") and done.returncode == 0


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_one_line_wherever_it_is_missed(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("armd.cli.answer", Mock(side_effect=error))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("armd: out of memory; ")


def test_a_compiler_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """torch.compile's own error; a model that cannot be compiled is told, too."""
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    error = InductorError(InvalidCxxCompiler(), None)
    monkeypatch.setattr("armd.cli.answer", Mock(side_effect=error))
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "leave out --compile" in said and said.count("\n") == 1


def test_a_name_that_is_no_text_is_named(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    error = UnicodeEncodeError("utf-8", "caf\udce9.txt", 3, 4, "surrogates not allowed")
    monkeypatch.setattr("armd.cli.answer", Mock(side_effect=error))
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == (
        "armd: 'caf?.txt' is no UTF-8 text; rename what has this name, or write it otherwise\n"
    )


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armd.cli.answer", Mock(side_effect=ImportError("no module 'armd.x'")))
    with pytest.raises(ImportError):
        main()
