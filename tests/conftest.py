"""While the tests run, the shapes in armd's signatures are checked at every call."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch

import armd.configuration_armd  # noqa: F401 - before the hook, which takes transformers' configs for dataclasses

jaxtyping.install_import_hook("armd", "checker.check")
torch.set_num_threads(1)  # tensors here are tiny: on busy cores a second thread only waits


@pytest.fixture
def unchecked() -> Iterator[None]:
    """For bad input: what a user sees, who runs without the shape checker."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
