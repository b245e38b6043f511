"""Laws: how many processes work on a run, and how they share the model, changes nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from training_help import (  # noqa: E402
    heldout,
    kill,
    losses,
    prepare_corpus,
    run,
    run_group,
    start_group,
    tiny,
    weights,
)

from armd.train.run_folder import read_metrics  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


# without dropout, whose noise is drawn by each process for its own rows; the average of the weights
# takes their place while held-out text is scored, and must leave no trace
SETTING = {"dropout": 0.0, "ema": 0.9, "steps": 16, "sbp_steps": 4, "checkpoint_every": 10}


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    assert run(tiny(data, out, **SETTING)) == 0
    return out


def assert_close(one: Path, two: Path) -> None:
    a, b = losses(one), losses(two)
    assert len(a) == len(b) == 20
    assert [row[:2] for row in a] == [row[:2] for row in b]
    assert max(abs(x[2] - y[2]) for x, y in zip(a, b, strict=True)) < 1e-5
    for (step, x), (other, y) in zip(heldout(one), heldout(two), strict=True):
        assert step == other
        assert x == pytest.approx(y, abs=1e-5)
    first, second = (load_file(out / "export" / "model.safetensors") for out in (one, two))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.allclose(first[name], second[name], atol=1e-4), name


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_two_processes_equal_one(data: Path, alone: Path, tmp_path: Path, parallel: str) -> None:
    recipe = tiny(data, tmp_path / "run", parallel=parallel, micro_batch=1, **SETTING)
    run_group(recipe, 2)
    assert_close(alone, tmp_path / "run")


@pytest.mark.parametrize("first, second", [("fsdp2", "one"), ("one", "fsdp2"), ("ddp", "fsdp2")])
def test_a_checkpoint_of_one_kind_resumes_as_another(
    data: Path, alone: Path, tmp_path: Path, first: str, second: str
) -> None:
    out = tmp_path / "run"
    for index, kind in enumerate((first, second)):
        parallel = "ddp" if kind == "one" else kind
        run_group(tiny(data, out, parallel=parallel, **SETTING), 1 if kind == "one" else 2)
        if index == 0:  # as if stopped half way
            shutil.rmtree(out / "checkpoints" / "step-00000020")
            shutil.rmtree(out / "export")
            (out / "checkpoints" / "newest.json").unlink()
    assert_close(alone, out)


def test_unequal_numbers_of_scored_tokens_weigh_right(tmp_path: Path) -> None:
    """Sentences of different lengths: the mean is over tokens, however they are shared out."""
    from armd.data.prepare import Preparation, prepare

    source = tmp_path / "lines.txt"
    source.write_text("".join("ab" * (1 + i % 7) + "\n" for i in range(60)))
    data = tmp_path / "data"
    prepare(
        Preparation(
            str(source),
            tokenizer="byte",
            out=data,
            rows=16,
            documents="line",
            heldout=0.1,
            workers=1,
        )
    )
    one, two = (tiny(data, tmp_path / name, **SETTING) for name in ("one", "two"))
    assert run(one) == 0
    run_group(two, 2)
    assert_close(tmp_path / "one", tmp_path / "two")


def test_torchrun_brings_a_run_back_when_a_worker_is_killed(data: Path, tmp_path: Path) -> None:
    calm, hurt = tmp_path / "calm", tmp_path / "hurt"
    setting = SETTING | {"steps": 96, "validate_every": 0, "checkpoint_every": 5}
    run_group(tiny(data, calm, **setting), 2)
    recipe = tiny(data, hurt, **setting)
    config = tmp_path / "config.json"
    from armd.train.recipe_files import as_json

    config.write_text(as_json(recipe))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "2", "--monitor-interval", "0.1", "--standalone"]
    command += ["-m", "armd.cli", "train", "mini", "--config", str(config)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    torchrun = subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        killed = _kill_a_worker(torchrun.pid, hurt)
        assert torchrun.wait(PATIENCE) == 0
    finally:
        if torchrun.poll() is None:
            os.killpg(torchrun.pid, signal.SIGTERM)
            torchrun.wait(PATIENCE)
    assert killed < 100
    assert [row[:3] for row in losses(calm)] == [row[:3] for row in losses(hurt)]
    assert weights(calm) == weights(hurt)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_a_process_whose_partner_died_ends_with_a_line(
    data: Path, tmp_path: Path, parallel: str
) -> None:
    out = tmp_path / "run"
    setting = SETTING | {"steps": 10_000, "validate_every": 0, "parallel": parallel}
    first, second = start_group(tiny(data, out, **setting), 2)
    while first.is_alive() and not read_metrics(out):
        time.sleep(0.01)
    kill(second)
    first.join(PATIENCE)
    code = first.exitcode
    kill(first)
    assert code == 2  # 1 would be a traceback


def _kill_a_worker(parent: int, out: Path) -> int:
    """Kill -9 the last worker once the run has a checkpoint; the step it was at."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (out / "checkpoints" / "newest.json").exists():
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            step = max((row["step"] for row in read_metrics(out)), default=0)
            os.kill(int(children[-1]), 9)
            return step
        time.sleep(0.01)
    raise AssertionError("the run wrote no checkpoint")
