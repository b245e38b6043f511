"""Laws: nothing that happens to a run changes what comes out of it, and nothing good is lost."""

import errno
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from training_help import (  # noqa: E402
    final_state,
    heldout,
    kill,
    losses,
    prepare_corpus,
    run,
    start,
    tiny,
    weights,
)

import armd  # noqa: E402
from armd.commands.verify import check_folder  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.train import saved_checkpoint  # noqa: E402
from armd.train.loop import train  # noqa: E402
from armd.train.saved_checkpoint import damage, steps_in  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run(tiny(data, out)) == 0
    return out


def assert_same(one: Path, two: Path) -> None:
    assert losses(one) == losses(two)
    assert heldout(one) == heldout(two)
    assert final_state(one) == final_state(two)
    assert weights(one) == weights(two)


def test_killed_at_random_moments_equals_uninterrupted(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    recipe, moments, kills = tiny(data, tmp_path / "run"), random.Random(0), 0
    for _ in range(60):
        process = start(recipe, slow=0.1)
        process.join(moments.uniform(0.04, 0.2) * 1.15**kills)  # however slow the machine is
        if process.exitcode == 0:
            break
        kill(process)
        kills += 1
    assert kills >= 2, "the run ended before it was killed: shorten the moments"
    assert_same(whole, tmp_path / "run")


def test_killed_between_the_last_checkpoint_and_its_export(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    """The export still holds an earlier step; going on, with nothing left to train, mends it."""
    recipe, out = tiny(data, tmp_path / "run"), tmp_path / "run"
    assert run(recipe) == 0
    export = out / "export" / "model.safetensors"
    blank = {name: torch.zeros_like(value) for name, value in load_file(export).items()}
    save_file(blank, export, {"format": "pt", "step": "8"})
    assert run(recipe) == 0
    assert_same(whole, out)


def test_killed_while_a_checkpoint_is_written_equals_uninterrupted(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    recipe, out, caught = tiny(data, tmp_path / "run"), tmp_path / "run", 0
    for _ in range(3):
        process = start(recipe, slow=0.5)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and process.is_alive():
            half = list(out.glob("checkpoints/.step-*.tmp/state-*.safetensors"))
            if half and half[0].stat().st_size:
                caught += 1
                break
            time.sleep(0.005)
        time.sleep(0.1 * caught)
        kill(process)
    assert caught == 3
    assert run(recipe) == 0
    assert_same(whole, out)


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)]
)
def test_a_signal_saves_first(
    data: Path, whole: Path, tmp_path: Path, number: int, code: int
) -> None:
    out = tmp_path / "run"
    recipe = tiny(data, out)
    process = start(recipe, slow=0.3)
    while not losses(out):
        time.sleep(0.005)
    os.kill(process.pid, number)
    process.join(PATIENCE)
    assert process.exitcode == code
    stopped = losses(out)[-1][0]
    assert stopped in steps_in(out / "checkpoints")
    assert stopped < 16, "the run ended before the signal came"
    assert run(recipe) == 0
    assert_same(whole, out)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("harm", [cut, flip, remove])
def test_a_damaged_newest_checkpoint_is_noticed_and_the_one_before_used(
    data: Path, whole: Path, tmp_path: Path, harm: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    harm(out / "checkpoints" / "step-00000016" / "state-00000.safetensors")
    train(tiny(data, out))
    said = capfd.readouterr().err
    assert "warning" in said and "step 16 is" in said
    assert_same(whole, out)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ENOTCONN, errno.ENFILE])
def test_a_checkpoint_that_cannot_be_read_now_is_not_called_damaged(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A network disk that is away for a moment must not cost the run its checkpoints."""
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    before, hash_file = sorted(out.rglob("*")), saved_checkpoint.hash_file

    def unreadable(path: Path) -> str:
        if path.suffix == ".safetensors":
            raise OSError(error, os.strerror(error), str(path))
        return hash_file(path)

    with monkeypatch.context() as patch, pytest.raises(ArmdError, match=r"cannot read .* mend"):
        patch.setattr(saved_checkpoint, "hash_file", unreadable)
        train(tiny(data, out))
    assert sorted(out.rglob("*")) == before
    assert_same(train(tiny(data, out)), whole)


def test_with_no_whole_checkpoint_left_the_run_does_not_start_over(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    for step in steps_in(out / "checkpoints"):
        flip(out / "checkpoints" / f"step-{step:08d}" / "state-00000.safetensors")
    with pytest.warns(UserWarning), pytest.raises(ArmdError, match="start over"):
        from armd.runtime.processes import ProcessGroup
        from armd.train.checkpoint import Checkpoints

        Checkpoints(
            out / "checkpoints", keep=2, group=ProcessGroup(0, 1, torch.device("cpu"))
        ).newest()


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import armd.train.checkpoint as module

    out, write = tmp_path / "run", module.write_tensors

    def full(path: Path, *rest: Any) -> str:
        if "step-00000006" in str(path):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *rest)

    monkeypatch.setattr(module, "write_tensors", full)
    with pytest.raises(ArmdError, match=r"No space left.*step 3 is whole.*free some space"):
        train(tiny(data, out))
    assert steps_in(out / "checkpoints") == [3]
    assert damage(out / "checkpoints" / "step-00000003") is None
    monkeypatch.undo()
    assert run(tiny(data, out)) == 0
    assert_same(whole, out)


def test_a_folder_of_another_config_is_not_touched(data: Path, whole: Path) -> None:
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    for changes, name in (({"rho": 3}, "rho"), ({"seed": 5}, "seed"), ({"d_model": 32}, "d_model")):
        with pytest.raises(ArmdError, match=f"another config: {name} is"):
            train(tiny(data, whole, **changes))
    assert before == {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}


def test_another_dataset_is_refused(data: Path, whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    shutil.copytree(data, other)
    manifest = (other / "manifest.json").read_text()
    from armd.data.dataset import open_dataset

    digest = open_dataset(data).manifest["tokenizer"]["hash"]
    (other / "manifest.json").write_text(manifest.replace(digest, "0" * len(digest)))
    with pytest.raises(ArmdError, match=r"manifest.json has another checksum"):
        train(tiny(other, whole))
    (other / "sha256.json").unlink()
    with pytest.raises(ArmdError, match="tokenizer"):
        train(tiny(other, whole))


def test_the_export_loads(whole: Path) -> None:
    model = armd.ArmdLM.from_pretrained(whole / "export")
    logits = model(torch.arange(8)[None]).logits
    assert logits.shape == (1, 8, model.config.vocab_size)


def test_a_run_has_one_owner(data: Path, whole: Path, tmp_path: Path) -> None:
    """The second process says who trains there and touches nothing; the first one loses nothing."""
    recipe, out = tiny(data, tmp_path / "run"), tmp_path / "run"
    first = start(recipe, slow=0.2)
    while not losses(out):
        time.sleep(0.005)
    with pytest.raises(ArmdError, match=rf"another process trains in .* \(pid {first.pid} on "):
        train(recipe)
    first.join(PATIENCE)
    assert first.exitcode == 0
    assert_same(whole, out)


@pytest.mark.parametrize("harm", ["cut", "flip", "remove", "empty", "change"])
def test_metrics_are_as_durable_as_the_weights(
    data: Path, whole: Path, tmp_path: Path, harm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    file = out / "metrics.jsonl"
    text = file.read_bytes()
    if harm == "remove":
        file.unlink()
    else:
        at = len(text) // 2
        flipped = text[:at] + b"\xff" + text[at + 1 :]
        changed = text.replace(b'"loss": 5', b'"loss": 1', 1)
        harmed = {"cut": text[:at], "flip": flipped, "empty": b"", "change": changed}
        assert changed != text
        file.write_bytes(harmed[harm])
    assert [name for name, wrong in check_folder(out) if wrong] == ["metrics.jsonl"]
    train(tiny(data, out))
    assert not [name for name, wrong in check_folder(out) if wrong]
    said = capfd.readouterr().err
    assert "metrics.jsonl was damaged: repaired" in said and len(said.splitlines()) == 1
    assert file.read_bytes() == text
    assert_same(whole, out)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": "16"}', '{"step": -1}', "null"])
def test_a_damaged_newest_json_is_said_and_repaired(
    data: Path, whole: Path, tmp_path: Path, content: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    newest = out / "checkpoints" / "newest.json"
    before = newest.read_bytes()
    newest.write_text(content)
    train(tiny(data, out))
    assert "newest.json is damaged" in capfd.readouterr().err
    assert newest.read_bytes() == before
    assert_same(whole, out)
    newest.write_text(content)
    shutil.rmtree(out / "checkpoints" / "step-00000015", ignore_errors=True)
    for step in steps_in(out / "checkpoints"):
        shutil.rmtree(out / "checkpoints" / f"step-{step:08d}")
    with pytest.raises(ArmdError, match="no whole checkpoint is left"):
        train(tiny(data, out))
