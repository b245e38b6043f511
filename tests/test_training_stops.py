"""Laws: a run that cannot go on stops with a reason, and what it has written before stays good."""

import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from training_help import final_state, losses, prepare_corpus, tiny, weights  # noqa: E402

import armd  # noqa: E402
from armd.commands.verify import check_folder  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.runtime.atomic_files import hash_file  # noqa: E402
from armd.train.loop import train  # noqa: E402
from armd.train.saved_checkpoint import damage, steps_in  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def test_a_really_full_disk(data: Path, tmp_path: Path) -> None:
    """The same on a disk of 300 kB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=300k tmpfs {disk} 2>/dev/null"):
        pytest.skip("may not mount a tmpfs here")
    try:
        with pytest.raises(ArmdError, match="free some space"):
            train(tiny(data, disk / "run", keep=9))
        steps = steps_in(disk / "run" / "checkpoints")
        assert steps
        assert damage(disk / "run" / "checkpoints" / f"step-{steps[-1]:08d}") is None
    finally:
        os.system(f"umount {disk}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_takes_no_more_ends_no_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It is said once, and again by the command's exit code; the run's own disk has room."""
    from armd.cli import main

    train(tiny(data, tmp_path / "heard"))
    capsys.readouterr()
    monkeypatch.setattr("armd.cli.run", lambda _: train(tiny(data, tmp_path / "unheard")))
    monkeypatch.setattr("armd.runtime.standard_streams.to_nowhere", lambda _: None)
    monkeypatch.setattr("sys.argv", ["armd", "plan"])
    with open("/dev/full", "wb", buffering=0) as full:
        out = io.TextIOWrapper(io.BufferedWriter(full), encoding="utf-8")
        monkeypatch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit, match="2"):
            main()
        monkeypatch.undo()
        with pytest.raises(OSError):
            out.close()
    warned, said = capsys.readouterr().err.splitlines()
    for line in (warned, said):
        assert "cannot write to standard output" in line and "No space left on device" in line
    assert final_state(tmp_path / "unheard") == final_state(tmp_path / "heard")
    assert weights(tmp_path / "unheard") == weights(tmp_path / "heard")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_anything_is_overwritten(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    out, forward, calls = tmp_path / "run", armd.ArmdLM.forward, [0]

    def broken(self: Any, *args: Any, **options: Any) -> Any:
        result = forward(self, *args, **options)
        calls[0] += self.training
        if calls[0] == 9:  # the first half of the fifth step
            result.loss = result.loss * value
        return result

    monkeypatch.setattr(armd.ArmdLM, "forward", broken)
    with pytest.raises(ArmdError, match=r"step 4 on rank 0 .*armd inspect .* --step 4"):
        train(tiny(data, out))
    assert steps_in(out / "checkpoints") == [3]
    assert [row[0] for row in losses(out)] == [1, 2, 3, 4]


def test_a_folder_that_is_no_run_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ArmdError, match="is no run"):
        train(tiny(data, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_a_run_that_is_refused_leaves_no_folder(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ArmdError, match="less than one window"):
        train(tiny(data, tmp_path / "new" / "too" / "run", length=40_000, validate_every=0))
    assert not any(tmp_path.iterdir())


def test_averaged_weights_survive_a_kill(data: Path, tmp_path: Path) -> None:
    one, two = (tiny(data, tmp_path / name, ema=0.9) for name in ("one", "two"))
    train(one)
    train(replace(two, out=str(tmp_path / "two")))
    shutil.rmtree(tmp_path / "two" / "checkpoints" / "step-00000016")
    train(two)
    assert final_state(tmp_path / "one") == final_state(tmp_path / "two")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    plain = tmp_path / "plain"
    train(tiny(data, plain))
    assert weights(plain) != weights(tmp_path / "one")
    assert losses(plain) == losses(tmp_path / "one")


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny(data, tmp_path_factory.mktemp("done") / "run"))


@pytest.mark.parametrize("name", ["config.json", "data.json", "metrics.jsonl", "newest.json"])
def test_a_pipe_in_place_of_a_runs_file_is_not_waited_for(
    data: Path, done: Path, tmp_path: Path, name: str
) -> None:
    out = Path(shutil.copytree(done, tmp_path / "run"))
    file = out / ("checkpoints" if name == "newest.json" else "") / name
    before = file.read_text()
    file.unlink()
    os.mkfifo(file)
    if name == "config.json":
        with pytest.raises(ArmdError, match="no plain file"):
            train(tiny(data, out))
        return
    train(tiny(data, out))
    assert file.read_text() == before


def test_data_facts_that_were_changed_are_damaged(data: Path, done: Path, tmp_path: Path) -> None:
    """verify says so, and training writes them anew; those of earlier runs have no checksum."""
    out = Path(shutil.copytree(done, tmp_path / "run"))
    file = out / "data.json"
    before = file.read_text()
    facts = json.loads(before)
    file.write_text(json.dumps({**facts, "vocab_size": facts["vocab_size"] + 1}))
    assert dict(check_folder(out))["data.json"]
    file.unlink()
    assert "missing" in str(dict(check_folder(out))["data.json"])
    train(tiny(data, out))
    assert file.read_text() == before
    file.write_text(json.dumps({name: facts[name] for name in facts if name != "sha256"}))
    assert ("data.json", None) in list(check_folder(out))
    train(tiny(data, out))


def test_a_checkpoint_is_verified_by_itself(done: Path, tmp_path: Path) -> None:
    saved = done / "checkpoints" / "step-00000016"
    place = Path(shutil.copytree(saved, tmp_path / saved.name))
    assert list(check_folder(place)) == [(saved.name, None)]
    (place / "state-00000.safetensors").write_bytes(b"cut")
    assert all(wrong for _, wrong in check_folder(place))


def test_a_run_without_its_checkpoints_keeps_its_export(
    data: Path, done: Path, tmp_path: Path
) -> None:
    """They may have been removed to free the disk: what is left of the run is not replaced."""
    out = Path(shutil.copytree(done, tmp_path / "run"))
    shutil.rmtree(out / "checkpoints")
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(ArmdError, match=r"no whole checkpoint is left .* --start from its export"):
        train(tiny(data, out))
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert not any(dict(check_folder(out)).values())


def test_an_export_that_is_gone_is_missed_and_made_again(
    data: Path, done: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(done, tmp_path / "run"))
    shutil.rmtree(out / "export")
    found = dict(check_folder(out))
    assert [name for name, wrong in found.items() if wrong] == ["export"]
    (out / ".lock").touch()  # it trains, or was killed, and may be about to write the first one
    assert "export" not in dict(check_folder(out))
    train(tiny(data, out))
    assert not any(dict(check_folder(out)).values())
    assert final_state(out) == final_state(done)


@pytest.mark.parametrize("change", [{"step": 13}, {"step": "16"}, {"heldout": "low"}], ids=repr)
def test_facts_that_are_of_no_such_checkpoint_are_not_believed(
    data: Path, done: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Although their checksum fits: a run may come from anybody."""
    out = Path(shutil.copytree(done, tmp_path / "run"))
    place = out / "checkpoints" / "step-00000016"
    facts = json.loads((place / "facts.json").read_text()) | change
    (place / "facts.json").write_text(json.dumps(facts))
    sums = json.loads((place / "sha256.json").read_text())
    sums["facts.json"] = hash_file(place / "facts.json")
    (place / "sha256.json").write_text(json.dumps(sums))
    train(tiny(data, out))
    assert final_state(out) == final_state(done)


def test_checkpoints_are_not_written_or_removed_through_a_link(
    data: Path, done: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(done, tmp_path / "run"))
    (out / "checkpoints").rename(tmp_path / "others")
    (out / "checkpoints").symlink_to(tmp_path / "others")
    before = sorted(path.name for path in (tmp_path / "others").iterdir())
    with pytest.raises(ArmdError, match="is a link"):
        train(tiny(data, out))
    assert sorted(path.name for path in (tmp_path / "others").iterdir()) == before


def test_what_a_killed_export_left_is_moved_though_nothing_is_left_to_train(
    data: Path, done: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(done, tmp_path / "run"))
    old = Path(shutil.copytree(out / "export", out / ".export.old"))
    (old / "mine.jsonl").write_text("mine")
    train(tiny(data, out))
    assert (out / "export" / "mine.jsonl").read_text() == "mine" and not old.exists()


def test_a_damaged_export_is_said_and_repaired(
    data: Path, done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(done, tmp_path / "run"))
    file = out / "export" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    train(tiny(data, out))
    said = capfd.readouterr().err
    assert "export is damaged (model.safetensors has another checksum)" in said
    assert file.read_bytes() == whole
