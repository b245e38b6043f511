"""What the training laws share: a small corpus, a tiny recipe, and child processes that start
quickly, because one server process has imported torch for all of them."""

import faulthandler
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from patience import PATIENCE

from armd.train.presets import mini
from armd.train.recipe import Recipe, Report
from armd.train.run_folder import read_metrics

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["armd.train.loop", "armd.train.command", "armd.commands.generate", "armd.serve.app"]
)


def prepare_corpus(folder: Path) -> Path:
    """A dataset of bytes; its words are drawn by a fixed rule, so that there is little to learn."""
    from armd.data.prepare import Preparation, prepare

    words = ["the", "order", "of", "a", "text", "is", "cut", "into", "blocks,", "drawn", "at once"]
    lines = [" ".join(words[(i * j) % len(words)] for j in range(1, 12)) for i in range(400)]
    source = folder / "corpus.jsonl"
    source.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    out = folder / "data"
    prepare(Preparation(str(source), tokenizer="byte", out=out, heldout=0.1, workers=1))
    return out


def tiny(data: Path, out: Path, **changes: Any) -> Recipe:
    """Two layers of 16, 16 steps with a checkpoint every 3, each step reported."""
    base = mini()
    recipe = replace(
        base,
        data=str(data),
        out=str(out),
        network=replace(base.network, d_model=16, n_layers=2, n_two_stream=1, n_heads=2, length=16),
        curriculum=replace(base.curriculum, steps=12, i_ar=2, i_perm=6, rho=4, sbp_steps=4),
        optimizer=replace(base.optimizer, batch_size=4, learning_rate=1e-3, warmup=3),
        report=Report(log_every=1, validate_every=6, validate_rows=4, checkpoint_every=3, keep=2),
        machine=replace(base.machine, micro_batch=2),
    )
    for name, value in changes.items():
        for part in ("network", "curriculum", "optimizer", "report", "machine"):
            if hasattr(getattr(recipe, part), name):
                recipe = replace(recipe, **{part: replace(getattr(recipe, part), **{name: value})})
                break
        else:
            recipe = replace(recipe, **{name: value})
    return recipe


def child(recipe: Recipe, slow: float = 0.0, environment: dict[str, str] | None = None) -> None:
    """Train in this process; `slow` seconds pass in the middle of each checkpoint file."""
    import torch

    import armd.train.checkpoint
    from armd.errors import ArmdError
    from armd.train.loop import train

    faulthandler.dump_traceback_later(PATIENCE)
    # tests started in the background of a script have SIGINT ignored, under nohup SIGHUP, and
    # training respects that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.update(environment or {})
    torch.set_num_threads(1)
    write = armd.train.checkpoint.write_tensors

    def write_slowly(path: Path, *rest: Any) -> str:
        digest = write(path, *rest)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        time.sleep(slow)
        path.write_bytes(whole)
        return digest

    if slow:
        armd.train.checkpoint.write_tensors = write_slowly
    try:
        train(recipe)
    except ArmdError as error:
        print(f"armd: {error}", flush=True)
        raise SystemExit(2) from None


def start(recipe: Recipe, **options: Any) -> Any:
    process = CONTEXT.Process(target=child, args=(recipe,), kwargs=options, daemon=True)
    process.start()
    return process


def run(recipe: Recipe, **options: Any) -> int:
    """Train in a child to its end; its exit code."""
    process = start(recipe, **options)
    process.join(PATIENCE)
    code = process.exitcode
    kill(process)
    return code


def run_group(recipe: Recipe, world: int) -> None:
    """Train with `world` gloo processes."""
    processes = start_group(recipe, world)
    for process in processes:
        process.join(PATIENCE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        kill(process)
    assert codes == [0] * world


def start_group(recipe: Recipe, world: int, **options: Any) -> list[Any]:
    return [start(recipe, environment=environment, **options) for environment in ranks(world)]


def ranks(world: int) -> list[dict[str, str]]:
    """What torchrun puts into the environment of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def kill(process: Any) -> None:
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE)


def losses(out: Path) -> list[tuple[int, str, float, float]]:
    """Each reported step, in the order of the file."""
    rows = [row for row in read_metrics(out) if "loss" in row]
    return [(row["step"], row["stage"], row["loss"], row["grad_norm"]) for row in rows]


def heldout(out: Path) -> list[tuple[int, dict[str, float]]]:
    return [(row["step"], row["heldout"]) for row in read_metrics(out) if "heldout" in row]


def final_state(out: Path, step: int = 16) -> str:
    """Weights and optimizer state, byte for byte: their digest."""
    return digest(out / "checkpoints" / f"step-{step:08d}" / "state-00000.safetensors")


def weights(out: Path) -> str:
    return digest(out / "export" / "model.safetensors")


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
