"""Law: who writes into the files of a model that was loaded, such as by cp of another one over it,
changes no text and no figure, and ends no process."""

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import armd  # noqa: E402
from armd.commands.generate_options import Writing, opened  # noqa: E402
from armd.eval.load_model import load  # noqa: E402
from armd.runtime.seeds import seeded  # noqa: E402


def written(folder: Path, weights: str) -> Any:
    return opened(Writing(str(folder), weights=weights))[0]


def scored(folder: Path, precision: str) -> Any:
    return load(str(folder), precision=precision).model


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux shows what is mapped")
@pytest.mark.parametrize(
    ("opening", "how"),
    [(written, "fp32"), (written, "plain"), (written, "q8"), (scored, "float32"), (scored, "q8")],
)
def test_nothing_stays_in_the_files(saved: Path, tmp_path: Path, opening: Any, how: str) -> None:
    copy = shutil.copytree(saved, tmp_path / "model")
    model = opening(copy, how)
    drawn = armd.generate(model, length=4, generator=seeded(0))
    for file in copy.rglob("*.safetensors"):
        file.write_bytes(b"")  # the same file, cut
    assert str(copy) not in Path("/proc/self/maps").read_text()
    assert torch.equal(armd.generate(model, length=4, generator=seeded(0)), drawn)
