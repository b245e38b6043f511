"""While the tests run, the shapes in armd's signatures are checked at every call."""

import os
from collections.abc import Iterator
from pathlib import Path

import checker
import jaxtyping
import pytest
import torch

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
