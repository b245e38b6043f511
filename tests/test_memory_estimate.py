"""A run that cannot fit into memory is refused at once; one that can is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from training_help import prepare_corpus, tiny

from armd.baselines import MODELS, model_class
from armd.errors import ArmdError
from armd.model.order import left_to_right
from armd.runtime import memory
from armd.train.loop import train
from armd.train.memory_estimate import kept_rows, memory_of
from armd.train.presets import PRESETS, mini, with_model
from armd.train.recipe import Adaptation, Recipe

GB = 10**9


def fewer(recipe: Recipe, **changes: Any) -> Recipe:
    parts = ("network", "curriculum", "optimizer", "report", "machine")
    for name, value in changes.items():
        part = next(part for part in parts if hasattr(getattr(recipe, part), name))
        recipe = replace(recipe, **{part: replace(getattr(recipe, part), **{name: value})})
    return recipe


def test_an_absurd_length_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepare_corpus(tmp_path)
    monkeypatch.setattr(memory, "available_memory", lambda: 20 * GB)
    recipe = replace(mini(), data=str(data), out=str(tmp_path / "run"))
    with pytest.raises(ArmdError, match=r"needs .* of memory, .* lower --length, --micro-batch"):
        train(fewer(recipe, length=100_000))
    assert not (tmp_path / "run").exists()


def test_each_way_out_that_is_named_needs_less() -> None:
    long = fewer(mini(), length=100_000, query="prefix", sbp_steps=0, validate_every=0)
    for less in ({"length": 1_000}, {"micro_batch": 1}, {"batch_size": 1}, {"d_model": 32}):
        assert memory_of(fewer(long, **less), 4096) < memory_of(long, 4096) / 2
    wide = fewer(long, length=64, d_pe=40_000)
    assert memory_of(wide, 4096) > 20 * GB > memory_of(fewer(wide, d_pe=0), 4096)
    streams = fewer(long, sbp_steps=10, batch_size=1)
    assert memory_of(streams, 4096) > 20 * GB > memory_of(fewer(streams, streams=(1,)), 4096)


@pytest.mark.parametrize("name", MODELS)
def test_of_a_pass_no_more_is_counted_than_it_keeps(name: str) -> None:
    n, batch = 64, 2
    base = fewer(mini(), length=n, d_model=32, batch_size=batch, sbp_steps=0, validate_every=0)
    recipe = base if name == "armd" else with_model(base, name)
    model = model_class(name)(recipe.config(40)).train()
    weights, kept = {w.untyped_storage().data_ptr() for w in model.parameters()}, {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(40, (batch, n))
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, order=left_to_right(n), labels=tokens)
    found = sum(storage.nbytes() for at, storage in kept.items() if at not in weights)
    assert kept_rows(recipe, batch) < found


def test_what_is_trained_here_is_not_refused(tmp_path: Path) -> None:
    """Presets for two cores on a small laptop, and a pretrained model whose adapter learns."""
    for name in ("mini", "demo"):
        assert memory_of(PRESETS[name](), 4096) < GB / 4
    assert memory_of(tiny(tmp_path, tmp_path), 257) < GB / 1000
    adapted = fewer(mini(), d_model=576, n_layers=30, length=1024, batch_size=1)
    adapted = replace(adapted, adapt=Adaptation(base_model="smollm2"))
    assert memory_of(adapted, 49_152) < GB < memory_of(replace(adapted, adapt=Adaptation()), 49_152)


@pytest.mark.parametrize("own", ["", "a/b"])
def test_the_limits_of_cgroups_count_and_their_page_cache_does_not(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that has read a large file holds it in its page cache, up to its limit."""
    groups, proc = tmp_path / "cgroup", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(f"0::/{own}\n")
    (proc / "meminfo").write_text(
        f"MemTotal: {99 * GB >> 10} kB\nMemAvailable: {64 * GB >> 10} kB\n"
    )
    monkeypatch.setattr(memory, "PROC", proc)
    monkeypatch.setattr(memory, "CGROUPS", groups)
    assert memory.available_memory() == 64 * GB
    place = groups / own.split("/")[0]
    (groups / own).mkdir(parents=True)
    (groups / own / "memory.max").write_text("max\n")
    (place / "memory.max").write_text(f"{4 * GB}\n")
    (place / "memory.current").write_text(f"{4 * GB - 5}\n")
    cached = f"active_file {GB}\ninactive_file {2 * GB}\n"
    (place / "memory.stat").write_text(f"anon {GB}\nfile {3 * GB}\n{cached}")
    assert memory.available_memory() == 3 * GB + 5
