"""Laws: an adaptation that is refused leaves nothing behind, and what it names to do works in the
same folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from convert_help import WORDS  # noqa: E402
from test_adapt import base, job, samples  # noqa: E402, F401

from armd.data.dataset import open_dataset  # noqa: E402
from armd.data.prepare import Preparation, prepare  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.train.adapt import adapt  # noqa: E402
from armd.train.adapt_command import recipe_of  # noqa: E402


def prepared(base: Path, out: Path, **options: Any) -> Path:  # noqa: F811
    file = out.with_name(f"{out.name}.txt")
    file.write_text("\n\n".join(f"the order {n} of the other then there " * 4 for n in range(99)))
    prepare(Preparation(str(file), str(base), out=out, documents="blank", workers=1, **options))
    return out


def test_without_held_out_text_no_run_is_begun(base: Path, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "run"
    with pytest.raises(ArmdError, match="no heldout tokens"):
        adapt(recipe_of(job(base, prepared(base, tmp_path / "none", heldout=0), out, steps=1)))
    assert not out.exists()
    some = prepared(base, tmp_path / "some", heldout=0.1)
    assert (adapt(recipe_of(job(base, some, out, steps=1))) / "export" / "config.json").is_file()


def test_a_rank_above_the_width_is_refused_before_anything_is_written(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ArmdError, match="--rank 1000000 passes the model's width"):
        recipe_of(job(base, samples, out, steps=1, rank=1_000_000))
    assert not list(tmp_path.glob("run*"))


@pytest.mark.parametrize("what", ["check_vocabulary", "check_disk"])
def test_no_run_is_begun_that_cannot_go_on(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    def refuse(*_: Any) -> None:
        raise ArmdError("refused")

    place = {"check_vocabulary": "armd.data.dataset.Dataset", "check_disk": "armd.train.adapt"}
    monkeypatch.setattr(f"{place[what]}.{what}", refuse)
    with pytest.raises(ArmdError, match="refused"):
        adapt(recipe_of(job(base, samples, tmp_path / "run", steps=1)))
    assert not (tmp_path / "run").exists()


def wrote(file: Path, count: int) -> Path:
    generator = torch.Generator().manual_seed(5)
    rows = torch.randint(1, WORDS, (count, 64), generator=generator).tolist()
    file.write_text("".join(json.dumps({"text": "", "ids": row}) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("count", [2, 19, 20, 39])
def test_of_few_samples_one_is_held_out(base: Path, tmp_path: Path, count: int) -> None:  # noqa: F811
    data, out = wrote(tmp_path / "own.jsonl", count), tmp_path / "run"
    assert (adapt(recipe_of(job(base, data, out, steps=1))) / "export").is_dir()
    made = open_dataset(tmp_path / "run-data").manifest
    splits = made["splits"]
    assert [splits[name]["documents"] for name in ("train", "heldout")] == [count - 1, 1]
    assert made["split_rule"] == f"held out: one sample in {min(count, 20)}"


def test_one_sample_is_too_few(base: Path, tmp_path: Path) -> None:  # noqa: F811
    data = wrote(tmp_path / "own.jsonl", 1)
    with pytest.raises(ArmdError, match=r"has one sample; .* give two or more$"):
        recipe_of(job(base, data, tmp_path / "run", steps=1))
    assert list(tmp_path.iterdir()) == [data]


def test_options_and_the_folder_are_checked_before_data_are_made(
    base: Path,  # noqa: F811
    samples: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    model, run, full = (tmp_path / name for name in ("model", "run", "full"))
    shutil.copytree(base, model)
    adapt(recipe_of(job(base, samples, run, steps=0)))
    shutil.rmtree(tmp_path / "run-data")
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    cases = {
        "--streams": job(base, samples, tmp_path / "new", streams=(65,)),
        "--learning-rate": job(base, samples, tmp_path / "new", learning_rate=float("nan")),
        "model holds a model, which is no run; choose another": job(model, samples, model),
        "full is no run but is not empty": job(base, samples, full),
        "another config: steps is 0 there and 6 here": job(base, samples, run),
    }
    for said, asked in cases.items():
        with pytest.raises(ArmdError, match=said):
            recipe_of(asked)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "run", "full"}
