"""Whichever file finds no room: one line, and nothing half-made. The limit is the system's own, so
that libraries in other languages meet it too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("peft")

from patience import PATIENCE
from test_adapt import base, samples  # noqa: F401

CHILD = """
import resource
import sys
from pathlib import Path

from armd.cli_errors import REFUSALS, refusal_of
from armd.convert.to_armd import convert
from armd.convert.to_gguf import to_gguf
from armd.convert.to_llama import to_llama
from armd.data.prepare import Preparation, prepare
from armd.train.adapt import adapt
from armd.train.adapt_command import recipe_of
from test_adapt import job

base, samples, place = map(Path, sys.argv[1:])
text = place / "text.txt"
text.write_text("some words " * 2000)
model = base.with_name("source")
WORKS = {
    "prepare": lambda out: prepare(Preparation(str(text), "bpe:300", out, heldout=0, workers=1)),
    "adapt": lambda out: adapt(recipe_of(job(base, samples, out, steps=1, validate_every=0))),
    "convert": lambda out: convert(str(model), out),
    "to_llama": lambda out: to_llama(str(base), out),
    "to_gguf": lambda out: to_gguf(str(base), out, "F32"),
}
for name, work in WORKS.items():
    for number, room in enumerate(500 * 4**n for n in range(10)):
        out = place / f"{name}{number}{'.gguf' * (name == 'to_gguf')}"
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        try:
            work(out)
        except Exception as error:
            if not isinstance(refusal_of(error), REFUSALS) or isinstance(error, RuntimeError):
                raise
            assert name == "adapt" or not out.exists(), f"{out} is half-made"
        else:
            print(f"\\nended {name} {number}", flush=True)
            break
"""


def test_a_file_that_finds_no_room_is_one_line(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    paths = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(base), str(samples), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended ")]
    assert [name for name, _ in ended] == ["prepare", "adapt", "convert", "to_llama", "to_gguf"]
    assert all(int(number) > 2 for _, number in ended), ended
