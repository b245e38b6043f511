"""While the tests run, the shapes in armd's signatures are checked at every call."""

from collections.abc import Iterator

import jaxtyping
import pytest

jaxtyping.install_import_hook("armd", "beartype.beartype")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """For bad input: what a user sees, who runs without the shape checker."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
