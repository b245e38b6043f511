"""Law: a dataset is called prepared already only while the tokenizer that was named is still the
one that made it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from armd.data.formats import Reading
from armd.data.manifest import MANIFEST
from armd.data.prepare import Preparation, prepare
from armd.data.sources import HubDataset
from armd.data.tokenizer import find_tokenizer, trained_tokenizer, with_ends
from armd.errors import ArmdError
from armd.runtime.atomic_files import SUMS
from armd.train.adapt_data import dataset_for, from_samples
from armd.train.run_folder import BASE, CONFIG

LINES = "".join(f"line {n} says that all is well and well\n" for n in range(80))


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A folder with a tokenizer whose words and special tokens are known."""
    return put_tokenizer(tmp_path / "named")


def put_tokenizer(folder: Path, text: str = LINES, **special: str) -> Path:
    made = with_ends(trained_tokenizer(290, [text]), rows=False)
    made.backend.add_special_tokens(["<s>", "</s>", "<other>", "<pad>"])
    made.special.update({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **special})
    shutil.rmtree(folder, ignore_errors=True)
    made.save(folder)
    return folder


def preparation(named: Path, **options: int) -> Preparation:
    source = named.parent / "source.txt"
    source.write_text(LINES)
    out = named.parent / "out"
    return Preparation(
        str(source),
        str(named),
        out,
        documents="line",
        workers=1,
        **options,  # type: ignore[arg-type]
    )


CHANGES = {
    "words": ({"text": "other words, of other letters; " * 40}, {}),
    "eos": ({"eos_token": "<other>"}, {}),
    "bos": ({"bos_token": "<other>"}, {"wrap": 16}),
    "pad": ({"pad_token": "<other>"}, {"rows": 16}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_name_that_means_another_tokenizer_now_is_refused(named: Path, change: str, capsys):
    changes, options = CHANGES[change]
    job = preparation(named, **options)
    made = prepare(job).manifest
    put_tokenizer(named)  # the same again, in other files
    assert prepare(job).manifest == made and "prepared already" in capsys.readouterr().err
    put_tokenizer(named, **changes)
    with pytest.raises(ArmdError, match=r"another tokenizer than .*named is now; choose another"):
        prepare(job)


def test_text_and_tokenizer_are_known_wherever_they_lie(named: Path, capsys, monkeypatch):
    job = preparation(named)
    made = prepare(job).manifest
    (source := named.parent / "elsewhere").mkdir()
    text = Path(job.source).rename(source / Path(job.source).name)
    named.rename(source / "other")
    monkeypatch.chdir(source)
    moved = replace(job, source=text.name, tokenizer="other")
    capsys.readouterr()
    assert prepare(moved).manifest == made and "prepared already" in capsys.readouterr().err
    with pytest.raises(ArmdError, match="prepared with tokenizer"):
        prepare(replace(moved, tokenizer="byte"))
    put_tokenizer(source / "other", text="other words, of other letters; " * 40)
    with pytest.raises(ArmdError, match="prepared with tokenizer"):
        prepare(moved)
    text.write_text(LINES.upper())
    with pytest.raises(ArmdError, match="prepared with"):
        prepare(moved)


@pytest.mark.parametrize("word", ["byte", "bpe:280", ""])
def test_what_cannot_have_changed_or_is_not_here_is_not_asked_for(named: Path, word: str, capsys):
    job = preparation(named)
    job = replace(job, tokenizer=word or job.tokenizer)
    prepare(job)
    shutil.rmtree(named)
    prepare(job)
    assert "prepared already" in capsys.readouterr().err


def test_a_dataset_of_an_earlier_version_names_no_bos_and_is_taken(named: Path, capsys):
    job = preparation(named)
    prepare(job)
    (job.out / SUMS).unlink()
    manifest = json.loads((job.out / MANIFEST).read_text())
    del manifest["tokenizer"]["bos"]
    manifest["options"]["gone since"] = None
    (job.out / MANIFEST).write_text(json.dumps(manifest))
    prepare(job)
    assert "prepared already" in capsys.readouterr().err
    put_tokenizer(named, eos_token="<other>")
    with pytest.raises(ArmdError, match="another tokenizer"):
        prepare(job)


def test_samples_that_became_a_dataset_are_of_the_tokenizer_of_the_run(named: Path):
    samples, run = named.parent / "samples.jsonl", named.parent / "run"
    samples.write_text('{"ids": [5, 6, 7]}\n' * 40)
    for _ in range(2):
        assert dataset_for(str(samples), named, run) == named.parent / "run-data"
    shutil.copytree(named, kept := run / BASE)
    put_tokenizer(named, text="other words, of other letters; " * 40)
    with pytest.raises(ArmdError, match=r"another tokenizer than .*named has now; remove it"):
        dataset_for(str(samples), named, run)
    (run / CONFIG).write_text("{}")  # a run that has begun goes on with the model it keeps
    assert dataset_for(str(samples), named, run) == named.parent / "run-data"
    put_tokenizer(kept, eos_token="<other>")
    with pytest.raises(ArmdError, match=r"another tokenizer than .*base has now; remove it"):
        dataset_for(str(samples), named, run)


def test_files_that_are_of_another_split_now_are_other_source_files(tmp_path: Path, capsys):
    pytest.importorskip("datasets")
    root = tmp_path / "hub"
    for split in ("dev", "train", "validation"):
        (root / split).mkdir(parents=True)
        words = "".join(json.dumps({"text": f"{split} {n}"}) + "\n" for n in range(9))
        (root / split / f"of-{split}.jsonl").write_text(words)
    job = Preparation(f"hf:{root}", "byte", tmp_path / "out", workers=1)
    made = prepare(job).manifest["options"]["fingerprint"]
    prepare(job)
    assert "prepared already" in capsys.readouterr().err
    (root / "train").rename(root / "test")
    (root / "validation").rename(root / "train")
    with pytest.raises(ArmdError, match="other source files"):
        prepare(job)
    (root / "train").rename(root / "validation")
    (root / "test").rename(root / "train")
    old = HubDataset(str(root), None, "train", Reading()).names_fingerprint()
    (job.out / SUMS).unlink()
    manifest = (job.out / MANIFEST).read_text()
    (job.out / MANIFEST).write_text(manifest.replace(made, old))  # of an earlier version
    prepare(job)
    assert "prepared already" in capsys.readouterr().err


def test_samples_whose_tokens_are_not_those_of_their_text_are_refused(named: Path):
    """Such as those of a model with another tokenizer, whose ids mean other words here."""
    samples, folder = named.parent / "samples.jsonl", named.parent / "made"
    tokenizer = find_tokenizer(str(named), (), rows=False)
    ids = tokenizer.backend.encode("all is well", add_special_tokens=False).ids
    records = [{"text": "all is well", "ids": [*ids, tokenizer.eos]}, {"ids": ids}]
    samples.write_text("".join(json.dumps(record) + "\n" for record in records * 20))
    assert from_samples(samples, named, folder) == folder
    records[0]["ids"] = list(b"all is well")
    samples.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(ArmdError, match="not those of its text"):
        from_samples(samples, named, named.parent / "other")
    assert not (named.parent / "other").exists()
