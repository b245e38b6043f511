"""Laws of the sampler: every window once an epoch, and a batch follows from (seed, step) alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from data_help import stored_shards
from hypothesis import given, settings
from hypothesis import strategies as st

from armd.data.dataset import Dataset, Split, open_dataset
from armd.data.prepare import Preparation, prepare
from armd.data.sampler import batch, heldout_batches, permuted, window_begins
from armd.errors import ArmdError


def dataset_of(tmp_path: Path, documents: list[str], **options) -> Dataset:
    source = tmp_path / "source.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    options = {"tokenizer": "byte", "workers": 1, "heldout": 0.2, **options}
    return prepare(Preparation(source=str(source), out=tmp_path / "out", **options))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    documents = [f"document {n}: " + "abcdefghij"[: n % 9 + 1] * n for n in range(60)]
    # Small shards, of a size that divides no window: reading crosses their borders all the time.
    return dataset_of(tmp_path_factory.mktemp("packed"), documents, shard_tokens=97)


@pytest.fixture(scope="module")
def rowed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    documents = [f"{n} " + "x" * (n % 40) for n in range(80)]
    return dataset_of(tmp_path_factory.mktemp("rows"), documents, rows=24)


def stream(split: Split) -> np.ndarray:
    return np.concatenate(stored_shards(split)).astype(np.int64)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**9))
def test_the_shuffle_is_a_bijection(count: int, seed: int, epoch: int):
    result = permuted(np.arange(count), count, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(result), np.arange(count))


def test_the_shuffle_shuffles():
    results = [permuted(np.arange(1000), 1000, seed=s, epoch=e) for s in (0, 1) for e in (0, 1)]
    for i, first in enumerate(results):
        assert (first == np.arange(1000)).sum() < 12
        # Neighbours do not stay neighbours, and each (seed, epoch) has its own order.
        assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.15
        for second in results[i + 1 :]:
            assert (first == second).sum() < 12


def test_large_counts_cost_no_memory():
    places = permuted(np.arange(1000), 10**12, seed=0, epoch=3)
    assert len(np.unique(places)) == 1000 and places.max() < 10**12 and places.min() >= 0


@pytest.mark.parametrize("length", [7, 16, 100])
def test_every_window_once_an_epoch(packed: Dataset, length: int):
    split = packed.split("train")
    windows = split.windows(length)
    offsets = set()
    for epoch in range(4):
        samples = np.arange(epoch * windows, (epoch + 1) * windows)
        begins = window_begins(split, samples, length=length, seed=5)
        assert len(np.unique(begins)) == windows
        assert len(np.unique(begins % length)) == 1
        offsets.add(int(begins[0] % length))
    assert len(offsets) > 1, "window borders differ from epoch to epoch"


def test_windows_are_the_stream_across_shards(packed: Dataset):
    split = packed.split("train")
    tokens = stream(split)
    assert len(split.shards) > 5 and len(tokens) == split.n_tokens
    for length in (1, 13, 97, 500):
        full = [split.window(length, index) for index in range(split.windows(length))]
        assert np.array_equal(np.concatenate([*full, split.tail(length)]), tokens)
    wrapped = split.window(500, split.windows(500) - 1, offset=499)
    assert np.array_equal(
        wrapped, np.resize(np.roll(tokens, -((split.windows(500) - 1) * 500 + 499)), 500)
    )


@settings(max_examples=30, deadline=None)
@given(step=st.integers(0, 10**6), processes=st.sampled_from([1, 2, 4, 8]))
def test_processes_together_see_the_global_batch(packed: Dataset, step: int, processes: int):
    options = {"length": 16, "batch_size": 8, "seed": 3, "step": step}
    whole, scored = batch(packed.split("train"), **options)
    share = 8 // processes
    ranges = [range(rank * share, (rank + 1) * share) for rank in range(processes)]
    # A freshly opened dataset knows nothing of the steps before.
    fresh = open_dataset(packed.folder).split("train")
    parts = [batch(fresh, rows=rows, **options)[0] for rows in ranges]
    assert torch.equal(torch.cat(parts), whole)
    strided = batch(fresh, rows=range(1, 8, 2), **options)[0]
    assert torch.equal(strided, whole[1::2])
    assert whole.dtype == torch.int64 and scored.dtype == torch.bool and bool(scored.all())


def test_batches_do_not_depend_on_their_size(packed: Dataset):
    split = packed.split("train")
    small = [batch(split, length=9, batch_size=4, seed=1, step=s)[0] for s in range(60)]
    large = [batch(split, length=9, batch_size=120, seed=1, step=s)[0] for s in range(2)]
    assert torch.equal(torch.cat(small), torch.cat(large))


def test_pads_are_never_scored_and_all_else_is(rowed: Dataset):
    split = rowed.split("train")
    assert split.windows(24) * 24 == split.n_tokens
    tokens, scored = batch(split, length=24, batch_size=split.windows(24), seed=0, step=0)
    assert torch.equal(scored, tokens != rowed.pad)
    for row, mask in zip(tokens.tolist(), scored.tolist(), strict=True):
        kept = sum(mask)
        assert mask == [True] * kept + [False] * (24 - kept)
        # Cut rows have no EOS; all others end with exactly one, which is scored.
        assert row[:kept].count(rowed.eos) == (1 if kept < 24 else row[-1] == rowed.eos)
    assert int(scored.sum()) == rowed.manifest["splits"]["train"]["scored"]
    assert rowed.manifest["splits"]["train"]["cut"] > 0


def test_rows_hold_their_documents(rowed: Dataset):
    expected = {f"{n} " + "x" * (n % 40) for n in range(80)}
    seen = set()
    for name in ("train", "heldout"):
        for tokens, scored in heldout_batches(rowed.split(name), length=24, batch_size=7):
            for row, mask in zip(tokens, scored, strict=True):
                seen.add(bytes(t for t in row[mask].tolist() if t < 256).decode())
    assert seen == {document[:24] for document in expected}


@pytest.mark.parametrize(("length", "batch_size"), [(16, 3), (7, 100), (100_000, 2)])
def test_heldout_batches_score_every_token_once(packed: Dataset, length: int, batch_size: int):
    split = packed.split("heldout")
    seen = [
        tokens[scored]
        for tokens, scored in heldout_batches(split, length=length, batch_size=batch_size)
    ]
    assert np.array_equal(torch.cat(seen).numpy(), stream(split))


def test_too_long_a_window_says_so(packed: Dataset, rowed: Dataset):
    with pytest.raises(ArmdError, match="less than one window of 1000000"):
        batch(packed.split("train"), length=10**6, batch_size=1, seed=0, step=0)
    with pytest.raises(ArmdError, match="rows of 24 tokens, not 25"):
        batch(rowed.split("train"), length=25, batch_size=1, seed=0, step=0)
