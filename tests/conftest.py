"""While the tests run, the shapes in armd's signatures are checked at every call."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import checker
import jaxtyping
import pytest
import torch

# before the hook, under which others' modules, too, would be compiled anew
import transformers.modeling_utils  # noqa: F401
import tyro  # noqa: F401

import armd

# before the hook, which takes transformers' configs for dataclasses
import armd.baselines.configuration
import armd.model.configuration_armd

# all but armd.data, which has files in its signatures, not tensors; gzip's are no typing.IO
PARTS = [path.stem for path in Path(armd.__file__).parent.iterdir()]
CHECKED = [f"armd.{part}" for part in PARTS if part not in ("__init__", "__pycache__", "data")]
jaxtyping.jaxtyped = checker.jaxtyped
jaxtyping.install_import_hook(CHECKED, "checker.check")
# tensors here are tiny: on busy cores a second thread only waits, in commands that tests start, too
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# some virtual machines announce AMX and then raise SIGILL at its first instruction (docs/log.md)
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# the last files that are given out should be short, so the slowest come first
SLOWEST = """
    distributed exchanged_runs data_prepare huggingface learning exchanged_adapt paper_study
    serve_command cached_equals_full reproduce_stops eval_harness sampling generate_command
    text_model golden training_faults reproduce eval_perplexity
"""
RANK = {f"test_{name}.py": rank for rank, name in enumerate(SLOWEST.split())}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files are given out in the order of collection (--no-loadscope-reorder)."""
    items.sort(key=lambda item: RANK.get(item.path.name, len(RANK)))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Meanwhile and later, Python looks for no garbage among what is imported: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """For bad input: what a user sees, who runs without the shape checker."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of ours with a tokenizer of bytes; nobody changes it."""
    from small import case_of
    from test_generate_command import save_tokenizer

    made = tmp_path_factory.mktemp("model")
    case_of("random", 4, 1, vocab_size=257, n_two_stream=2).model.save_pretrained(made)
    save_tokenizer(made)
    return made
