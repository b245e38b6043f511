"""Law: of an adapter each tensor has its place and its shape, or the adapter is not used."""

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from safetensors.torch import load_file, save_file  # noqa: E402
from test_adapt import base, job, samples  # noqa: E402, F401

from armd.convert.adapter import NEW, WEIGHTS  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.runtime.atomic_files import write_sums  # noqa: E402
from armd.train.adapt import adapt  # noqa: E402
from armd.train.adapt_command import recipe_of  # noqa: E402

FACTOR = "base_model.model.layers.0.query.lora_{}.weight"


@pytest.fixture(scope="module", params=[True, False], ids=["exact", "merged"])
def made(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> tuple[Path, bool]:
    out = tmp_path_factory.mktemp("made") / "run"
    adapt(recipe_of(job(base, samples, out, steps=0, exact=request.param)))
    return out / "adapter", request.param


@pytest.mark.parametrize(
    ("file", "name", "change"),
    [
        (WEIGHTS, FACTOR.format("A"), None),
        (WEIGHTS, FACTOR.format("B"), lambda factor: factor[:, 0]),
        (WEIGHTS, FACTOR.format("B"), lambda factor: factor[0, 0]),
        (WEIGHTS, FACTOR.format("B"), lambda factor: factor * torch.nan),
        (WEIGHTS, FACTOR.format("A").replace("0", "9"), lambda _: torch.zeros(2, 4)),
        (NEW, "norm.weight", lambda _: torch.zeros(32)),
        (NEW, "unknown", None),
        (NEW, "gate", lambda gate: gate.int()),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    made: tuple[Path, bool],
    tmp_path: Path,
    *,
    file: str,
    name: str,
    change: Any,
) -> None:
    """Missing, of other shapes, in place of the source's own: though the checksums fit."""
    folder, exact = tmp_path / "adapter", made[1]
    shutil.copytree(made[0], folder)
    tensors = load_file(folder / file)
    tensor = tensors.pop(name, None)
    if change is not None:
        tensors[name] = change(tensor).contiguous()
    save_file(tensors, folder / file)
    write_sums(folder)
    with pytest.raises(ArmdError, match="adapter"):
        convert(str(base.parent / "source"), tmp_path / "out", adapter=folder)
    with pytest.raises(ArmdError, match="adapter"):
        adapt(recipe_of(job(base, samples, tmp_path / "run", start=folder, exact=exact)))
    assert not (tmp_path / "out").exists()
