"""The file of --out: nothing in it is lost by mistake, and what was cut off goes on row by row."""

import errno
import fcntl
import json
import os
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

from armd import cli
from armd.commands import generate, generate_outputs
from armd.errors import ArmdError
from armd.runtime import processes
from armd.runtime.processes import ProcessGroup


@pytest.fixture(scope="module")
def folder(saved: Path) -> Path:
    return saved


def words(folder: Path, out: Path, *more: object) -> list[str]:
    fixed = ("--count", 12, "--length", 30, "--batch", 2, "--no-stop", "--out", out)
    return ["generate", *map(str, (folder, *fixed, *more))]


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    cli.run(words(folder, out))
    return out.read_bytes()


def test_a_file_that_is_there_is_not_replaced_unless_asked(
    folder: Path, whole: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("years of work\n")
    with pytest.raises(ArmdError, match="--resume goes on with it, --overwrite replaces it"):
        cli.run(words(folder, out))
    with pytest.raises(ArmdError, match="not both"):
        cli.run(words(folder, out, "--resume", "--overwrite"))
    with pytest.raises(ArmdError, match="name it"):
        cli.run(["generate", str(folder), "--resume"])
    with pytest.raises(ArmdError, match="one file"):  # samples and figures have one each
        cli.run(words(folder, tmp_path / "new.jsonl", "--json", tmp_path / "new.jsonl"))
    assert out.read_text() == "years of work\n"
    cli.run(words(folder, out, "--overwrite"))
    assert out.read_bytes() == whole


@pytest.mark.parametrize("share", [0.0, 0.3, 0.55, 0.9, 1.0])
def test_cut_anywhere_and_resumed_equals_whole(
    folder: Path, whole: bytes, tmp_path: Path, share: float
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole[: int(share * len(whole))])
    cli.run(words(folder, out, "--resume"))
    assert out.read_bytes() == whole


def test_a_file_that_another_process_wrote_while_the_model_was_loaded_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, load = tmp_path / "out.jsonl", generate.opened

    def slowly(*args: Any) -> Any:
        out.write_text("years of work\n")
        return load(*args)

    monkeypatch.setattr(generate, "opened", slowly)
    with pytest.raises(ArmdError, match="--resume goes on with it, --overwrite replaces it"):
        cli.run(words(folder, out))
    assert out.read_text() == "years of work\n"


@pytest.mark.parametrize("at", [3, 11])
def test_a_file_that_is_replaced_meanwhile_is_no_success(
    folder: Path, tmp_path: Path, monkeypatch, at: int
) -> None:
    out, add = tmp_path / "out.jsonl", generate_outputs.Records.add

    def replacing(self, request, text) -> None:
        add(self, request, text)
        if request.index == at:
            out.unlink()
            out.write_text("years of work\n")

    monkeypatch.setattr(generate_outputs.Records, "add", replacing)
    with pytest.raises(ArmdError, match="removed or replaced while samples were written"):
        cli.run(words(folder, out))
    assert out.read_text() == "years of work\n"


def test_a_file_has_one_writer(folder: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole)
    with out.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for how in ("--resume", "--overwrite"):
            with pytest.raises(ArmdError, match="another process writes"):
                cli.run(words(folder, out, how))
    assert out.read_bytes() == whole


def test_other_settings_and_damage_are_not_resumed(
    folder: Path, whole: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArmdError, match="other settings"):
        cli.run(words(folder, out, "--resume", "--temperature", 0.5))
    with pytest.raises(ArmdError, match="other prompts"):
        cli.run(words(folder, out, "--resume", "--prompt", "the"))
    (tmp_path / "model").symlink_to(folder)  # another name is no other setting
    cli.run(words(tmp_path / "model", out, "--resume"))
    lines = whole.splitlines(keepends=True)
    assert len(out.read_bytes().splitlines()) == len(lines)
    out.write_bytes(lines[0] + b"{broken\n" + b"".join(lines[1:]))
    with pytest.raises(ArmdError, match="damaged in line 2"):
        cli.run(words(folder, out, "--resume"))


def test_samples_of_other_weights_are_not_resumed(
    folder: Path, whole: bytes, tmp_path: Path
) -> None:
    """Such as of a run that trained on. Earlier files do not say which they are of."""
    out, lines = tmp_path / "out.jsonl", whole.splitlines(keepends=True)
    first = json.loads(lines[0])
    whose = first["settings"]["checksum"]
    for sum_of in ("0" * 16, whose[:-1] + "x", whose.split("-")[0] + "x", None):
        first["settings"] |= {"checksum": sum_of}
        if sum_of is None:
            del first["settings"]["checksum"]
        out.write_text(json.dumps(first) + "\n")
        if sum_of is None:
            cli.run(words(folder, out, "--resume"))
            assert out.read_bytes().splitlines(keepends=True)[1:] == lines[1:]
            continue
        with pytest.raises(ArmdError, match="other weights"):
            cli.run(words(folder, out, "--resume"))


@pytest.mark.parametrize(
    "mine", [b"a poem of one line", b"a poem\n", b'{"prompt": 5}\n', b"\xff\xfe", b'{"indexes": 3}']
)
def test_a_file_of_something_else_is_not_resumed_away(
    folder: Path, whole: bytes, tmp_path: Path, mine: bytes
) -> None:
    """Nor with other settings, nor is anything cut from it before the settings were compared."""
    out = tmp_path / "out.jsonl"
    for content in (mine, whole.splitlines(keepends=True)[0] + mine):
        out.write_bytes(content)
        with pytest.raises(ArmdError, match="damaged in line"):
            cli.run(words(folder, out, "--resume"))
        assert out.read_bytes() == content
    out.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArmdError, match="other settings"):
        cli.run(words(folder, out, "--resume", "--temperature", 0.5))
    assert out.read_bytes() == whole[: len(whole) // 2]


def test_a_pipe_whose_reader_left_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    """As in `--out /dev/stdout | head`; and a pipe or a device keeps nothing to go on with."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    job = cli_records(pipe)
    os.close(reader)
    with pytest.raises(BrokenPipeError), job as records:
        assert records.stream is not None
        records.stream.write("x")
        records.stream.flush()
    for out in (pipe, "/dev/zero"):
        with pytest.raises(ArmdError, match="pipe or a device"):
            cli.run(words(folder, Path(out), "--resume"))


def cli_records(out: Path) -> generate_outputs.Records:
    from armd.commands.generate_options import Writing
    from armd.runtime.processes import ProcessGroup

    one: Any = ProcessGroup()
    return generate_outputs.Records(Writing("m", out=out), {}, [], None, one)  # type: ignore[arg-type]


def test_a_full_disk_keeps_whole_rows(
    folder: Path,
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, add, count = tmp_path / "out.jsonl", generate_outputs.Records.add, [0]

    def full(self: generate_outputs.Records, *rest: object) -> None:
        count[0] += 1
        if count[0] == 6:
            self.stream.write('{"index": 5, "ha')  # type: ignore[union-attr]
            raise OSError(errno.ENOSPC, "No space left on device", str(out))
        add(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(generate_outputs.Records, "add", full)
    with pytest.raises(OSError):
        cli.run(words(folder, out))
    assert "kept 5 samples" in capsys.readouterr().err
    monkeypatch.undo()
    cli.run(words(folder, out, "--resume"))
    assert out.read_bytes() == whole


def test_killed_and_resumed_equals_whole(folder: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Forked(words(folder, out), stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (out.exists() and out.stat().st_size):
            time.sleep(0.01)
        process.kill()
    cli.run(words(folder, out, "--resume"))
    records, expected = (
        [json.loads(line) for line in text.splitlines()] for text in (out.read_bytes(), whole)
    )
    for one, other in zip(records, expected, strict=True):
        assert one["ids"] == other["ids"] and one["index"] == other["index"]


class Both(ProcessGroup):
    """The first of two processes, which does the work of both."""

    def share(self, items: Any) -> Any:
        return items

    def gather(self, mine: Any) -> list[Any]:
        return [mine]

    def from_first(self, value: Any) -> Any:
        return value


def test_of_several_processes_no_file_is_lost_either(
    folder: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "process_group", lambda *_: nullcontext(Both(world=2)))
    out = tmp_path / "out.jsonl"
    other = whole.replace(b'"temperature": 1.0', b'"temperature": 0.5')
    assert other != whole
    for content in (b"my notes\n", b"my notes", other):
        out.write_bytes(content)
        with pytest.raises(ArmdError, match="--overwrite"):
            cli.run(words(folder, out, "--resume"))
        assert out.read_bytes() == content and sorted(tmp_path.iterdir()) == [out]
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    cli.run(words(folder, out, "--resume"))
    assert out.read_bytes() == whole and sorted(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("world", [1, 2])
def test_a_device_is_written_to_by_any_number_of_processes_at_a_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    """A terminal stands for it: it keeps what is written, and needs no rights to make."""
    monkeypatch.setattr(processes, "process_group", lambda *_: nullcontext(Both(world=world)))
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    device = tmp_path / "device"
    device.symlink_to(os.ttyname(theirs))
    with device.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        cli.run(words(folder, device, "--count", 1, "--length", 3))
    assert os.read(ours, 100).startswith(generate_outputs.BEGIN)
    assert device.is_symlink() and sorted(tmp_path.iterdir()) == [device]


def test_a_device_that_calls_itself_seekable_is_not_cut(folder: Path) -> None:
    """In one process, which replaces nothing whatever goes wrong: this is the machine's own."""
    cli.run(words(folder, Path(os.devnull), "--count", 1, "--length", 3))


@pytest.mark.parametrize("there", [True, False])
def test_several_processes_follow_a_link_of_the_users_as_one_does(
    folder: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(processes, "process_group", lambda *_: nullcontext(Both(world=2)))
    file, link = tmp_path / "there" / "out.jsonl", tmp_path / "link"
    file.parent.mkdir()
    if there:
        file.touch()
    link.symlink_to(file)
    cli.run(words(folder, link))
    assert link.is_symlink() and file.read_bytes() == whole
    assert sorted(tmp_path.rglob("*")) == [link, file.parent, file]
