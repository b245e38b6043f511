"""Laws: what happens to a dataset's files while they are read changes no token that is learnt."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_help import stored_shards
from training_help import prepare_corpus, tiny

from armd.data import prepare as prepare_module
from armd.data.dataset import open_dataset
from armd.data.formats import Reading
from armd.data.prepare import Preparation, prepare
from armd.data.shard_file import ShardFile
from armd.data.sources import find_source
from armd.data.tokenizer import byte_tokenizer, with_ends
from armd.errors import ArmdError
from armd.train import adapt_data
from armd.train.loop import train
from armd.train.trainer import Trainer

WEIGHTS = "export/model.safetensors"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A dataset, and the weights of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    data = prepare_corpus(folder)
    return data, (train(tiny(data, folder / "run")) / WEIGHTS).read_bytes()


@pytest.mark.parametrize("left", [1.0, 0.5, 0.0])
def test_a_shard_that_is_changed_while_a_run_reads_it_ends_the_run(
    undisturbed: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: float
) -> None:
    """Overwritten, or cut to a half or to nothing: with no checkpoint of what it learnt since; with
    the old one back, it ends as it would."""
    shutil.copytree(undisturbed[0], data := tmp_path / "data")
    shard, step = data / "train-00000.bin", Trainer.train_step
    before = shard.read_bytes()

    def with_more(self, batch, **rest):
        if batch.step == 7:
            shard.write_bytes(b"\x07\x00" * int(len(before) // 2 * left))
        return step(self, batch, **rest)

    with monkeypatch.context() as patch, pytest.raises(ArmdError, match="was changed while"):
        patch.setattr(Trainer, "train_step", with_more)
        train(tiny(data, tmp_path / "run"))
    shard.unlink()
    shard.write_bytes(before)  # a new file with the same tokens
    run = train(tiny(data, tmp_path / "run"))
    assert (run / WEIGHTS).read_bytes() == undisturbed[1]


def test_a_shard_that_is_removed_or_replaced_under_a_run_is_read_as_it_was(
    undisturbed: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(undisturbed[0], data := tmp_path / "data")
    shard, step = data / "train-00000.bin", Trainer.train_step

    def without(self, batch, **rest):
        if batch.step == 5:
            shard.unlink()
        if batch.step == 9:
            shard.write_bytes(b"")
        return step(self, batch, **rest)

    monkeypatch.setattr(Trainer, "train_step", without)
    run = train(tiny(data, tmp_path / "run"))
    assert (run / WEIGHTS).read_bytes() == undisturbed[1]


@pytest.mark.parametrize("again", [True, False], ids=["replaced", "gone"])
def test_a_dataset_that_is_moved_under_a_run_leaves_its_tokenizer_there(
    undisturbed: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The export has the tokenizer of the tokens that were learnt, and so have samples."""
    shutil.copytree(undisturbed[0], data := tmp_path / "data")
    source, step = tmp_path / "other.txt", Trainer.train_step
    source.write_text("other words in here\n" * 200 + "and there\n")
    options = {"documents": "line", "workers": 1, "heldout": 0.5}
    prepare(Preparation(str(source), "bpe:300", tmp_path / "other", **options))

    def moved(self, batch, **rest):
        if batch.step == 5:
            data.rename(tmp_path / "moved")
            if again:
                (tmp_path / "other").rename(data)
        return step(self, batch, **rest)

    monkeypatch.setattr(Trainer, "train_step", moved)
    recipe = tiny(data, tmp_path / "run")
    run = train(replace(recipe, report=replace(recipe.report, sample_every=8)))
    assert (run / WEIGHTS).read_bytes() == undisturbed[1]
    ours = (undisturbed[0] / "tokenizer" / "tokenizer.json").read_bytes()
    assert (run / "export" / "tokenizer.json").read_bytes() == ours
    assert len(list((run / "samples").iterdir())) == 2


def test_more_shards_than_stay_open_are_read_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armd.data.dataset.MOST_OPEN", 3)
    source = tmp_path / "text.txt"
    source.write_text("".join(f"line {n}\n" for n in range(40)))
    options = {"documents": "line", "workers": 1, "shard_tokens": 17}
    made = Preparation(str(source), "byte", tmp_path / "data", **options)
    split = prepare(made).split("train")
    read = np.concatenate(
        [split.gather(5, np.array([at]))[0] for at in range(0, split.n_tokens, 5)]
    )
    assert len(split.opened) == 3 < len(split.shards) == len(split.checked)
    stored = np.concatenate(stored_shards(split))
    assert np.array_equal(read[: len(stored)], stored)
    last = max(split.opened)
    split.shard(0)
    file = split.dataset.folder / split.shards[last]["file"]
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(ArmdError, match="was changed while"):
        for index in range(3):
            split.shard(index)


def test_a_shard_that_another_thread_opens_meanwhile_is_no_change(
    undisturbed: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    split, stamp = open_dataset(undisturbed[0]).split("train"), ShardFile.stamp
    first = split.shard(0)

    def with_another(shard: ShardFile):
        split.opened.pop(0, None)  # the oldest makes room
        split.opened[len(split.opened) + 1] = first
        return stamp.__get__(shard)

    monkeypatch.setattr(ShardFile, "stamp", property(with_another))
    split.check_unchanged()


def test_a_source_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset would be of two texts, and be taken for one of the first."""
    source, write = tmp_path / "text.txt", prepare_module.write_splits
    source.write_text("one line\n\nanother line\n\n" * 50)

    def changed(*args):
        source.write_text("other words\n\nof a text\n\n" * 50)
        return write(*args)

    monkeypatch.setattr(prepare_module, "write_splits", changed)
    with pytest.raises(ArmdError, match="was changed while it was read"):
        prepare(Preparation(str(source), "byte", tmp_path / "out", documents="blank", workers=1))
    assert not (tmp_path / "out").exists()


def test_samples_that_change_while_they_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, read = tmp_path / "samples.jsonl", adapt_data.sample_ids
    samples.write_text('{"ids": [5, 6]}\n' * 40)
    with_ends(byte_tokenizer(), rows=False).save(tmp_path / "base")

    def changed(*args):
        yield from read(*args)
        samples.write_text('{"ids": [7, 8]}\n' * 40)

    monkeypatch.setattr(adapt_data, "sample_ids", changed)
    with pytest.raises(ArmdError, match="was changed while it was read"):
        adapt_data.from_samples(samples, tmp_path / "base", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_files_of_a_local_hub_folder_are_known_by_their_content_now(tmp_path: Path) -> None:
    """A fingerprint that is taken twice would not be worth it if the first were kept."""
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n')
    source = find_source(f"hf:{tmp_path}", Reading())
    before = source.fingerprint()
    (tmp_path / "train.jsonl").write_text('{"text": "two"}\n')
    assert source.fingerprint() != before
