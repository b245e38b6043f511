"""Training the study's runs, a few at a time, each in a process of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..data.dataset import open_dataset
from ..data.manifest import MANIFEST
from ..errors import ArmdError
from ..runtime.atomic_files import refuse_link, replace_text
from ..runtime.atomic_folders import our_folder
from ..runtime.signals import PARENT
from ..train.export import exported_step, told_step
from ..train.recipe import Recipe
from ..train.recipe_files import as_json, differences
from ..train.run_folder import EXPORT, data_facts, read_data_facts, read_recipe
from ..train.stop import SIGNALS
from .runs import Study, Trained


@dataclass
class Worker:
    """A run that is being trained."""

    trained: Trained
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float


def done(study: Study, trained: Trained) -> bool:
    """The run is at its last step, and it is a run of this very recipe. One of another recipe is
    not done: the trainer will refuse to go on with it, and say why."""
    folder, total = study.run(trained.name), trained.recipe.curriculum.total
    # what it tells is read at once, its checksums where that is worth it
    if told_step(folder / EXPORT) != total or exported_step(folder / EXPORT) != total:
        return False
    return not any(differences(read_recipe(folder), study.placed(trained)))


def check_data(study: Study, runs: list[Trained]) -> None:
    """Raise if a run that is there was trained on other tokens than its dataset has. The trainer
    would say so, too, but it is not asked about a run that is done."""
    facts: dict[str, Any] = {}
    for run in runs:
        folder, data = study.run(run.name), study.placed(run).data
        before = read_data_facts(folder)
        if before is None or not (Path(data) / MANIFEST).exists():
            continue  # nothing to compare: no run yet, or a plan without a dataset
        if data not in facts:
            facts[data] = data_facts(open_dataset(data))
        if before != facts[data]:
            raise ArmdError(
                f"{folder} was trained on another dataset than {data}; "
                "give that one with --data, or another folder with --out"
            )


def train_all(study: Study, runs: list[Trained], *, jobs: int, launch: str = "") -> dict[str, str]:
    """Train what is not trained yet, `jobs` runs at a time; a run waits for the one it starts from.
    Returns what went wrong, by run: one that fails stops no other. Asked to stop, the runs save
    first, and the same command goes on with them."""
    check_data(study, runs)
    launcher = launcher_of(launch)
    finished = {run.name for run in runs if done(study, run)}
    waiting = [run for run in runs if run.name not in finished]
    if waiting:
        print(f"{len(waiting)} of {len(runs)} runs to train, {jobs} at a time", flush=True)
    working: list[Worker] = []
    failed: dict[str, str] = {}
    asked: list[int] = []  # to stop; heard between two steps, so that no run is started unseen
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: asked.append(number))
    try:
        while waiting or working:
            if asked:
                raise KeyboardInterrupt if asked[0] == signal.SIGINT else SystemExit(128 + asked[0])
            free = jobs - len(working)
            for run in ready(study, runs, waiting, finished)[:free] if free else ():
                waiting.remove(run)
                working.append(start(study, run, jobs=jobs, launcher=launcher))
            if not working:  # what is left starts from runs that failed
                failed |= {run.name: f"needs {run.after}" for run in waiting}
                break
            time.sleep(0.3)
            working = [worker for worker in working if not ended(study, worker, failed)]
    except BaseException:
        stop(working)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    return failed


def ready(
    study: Study, runs: list[Trained], waiting: list[Trained], finished: set[str]
) -> list[Trained]:
    """Those that start from nothing, or from a run that is done, whose checksums are compared once:
    its name goes into `finished`."""
    wanted = {run.after for run in waiting} - finished
    finished |= {run.name for run in runs if run.name in wanted and done(study, run)}
    return [run for run in waiting if not run.after or run.after in finished]


def launcher_of(words: str) -> list[str]:
    """How a run is started instead of `armd`, as words of a command; none: as usual."""
    try:
        found = shlex.split(words)
    except ValueError as error:
        raise ArmdError(f"cannot read --launch {words!r} ({error}); quote its words") from None
    if found and shutil.which(found[0]) is None:
        raise ArmdError(f"--launch: there is no command {found[0]!r}; name one on the path")
    return found


def start(study: Study, trained: Trained, *, jobs: int, launcher: list[str]) -> Worker:
    """`armd train`, from a config file, on this run's share of the cores."""
    recipe = study.placed(trained)
    command = [*(launcher or [sys.executable, "-m", "armd.cli"]), "train"]
    command += [recipe.preset, "--config", str(config_file(study, trained.name, recipe))]
    file = our_folder(study.folder / "logs") / f"{trained.name}.log"
    refuse_link(file)
    log = file.open("ab")
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    if not launcher:  # else the child is a launcher, which knows nothing of it
        environment[PARENT] = str(os.getpid())
    # a group of its own: Ctrl-C is passed on by us, once
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=environment,
    )
    print(f"  {trained.name}: training, {recipe.curriculum.total} steps", flush=True)
    return Worker(trained, process, log, time.monotonic())


def config_file(study: Study, name: str, recipe: Recipe) -> Path:
    folder = our_folder(study.folder / "configs")
    replace_text(folder / f"{name}.json", as_json(recipe))
    return folder / f"{name}.json"


def ended(study: Study, worker: Worker, failed: dict[str, str]) -> bool:
    code = worker.process.poll()
    if code is None:
        return False
    worker.log.close()
    name, minutes = worker.trained.name, (time.monotonic() - worker.began) / 60
    if code == 0 and done(study, worker.trained):
        print(f"  {name}: done in {minutes:.1f} min", flush=True)
        return True
    lines = (study.folder / "logs" / f"{name}.log").read_text("utf-8", "replace").splitlines()
    failed[name] = lines[-1] if lines else f"exit code {code}"
    print(f"  {name}: FAILED: {failed[name]}", flush=True)
    return True


def stop(working: list[Worker]) -> None:
    """Let every run save and end."""
    for worker in working:
        if worker.process.poll() is None:
            os.killpg(worker.process.pid, signal.SIGTERM)
    for worker in working:
        try:
            worker.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.log.close()


def require(study: Study, name: str) -> Path:
    """The folder of a run that must be there."""
    folder = study.run(name)
    if exported_step(folder / EXPORT) is None:
        raise ArmdError(f"run {name} is not trained; see {study.folder / 'logs' / name}.log")
    return folder
