"""Laws of the page where the model writes left to right alone: what it cannot do is off."""

from pathlib import Path
from typing import Any

import pytest
from page_help import (
    a_browser,  # noqa: F401
    a_page,  # noqa: F401
    an_address,  # noqa: F401
    generate,
    saved_model,
)


@pytest.fixture(name="model", scope="module")
def an_autoregressive_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("page"), query="shift")


def test_the_first_example_is_one_that_it_can_write(page: Any):
    assert "____" not in page.input_value("#prompt")
    generate(page)
    assert page.inner_text("#error") == "" and "token" in page.inner_text("#facts")
    for cannot in ("#order-of", "#streams", '[data-example="blanks"]', "#race-start"):
        assert page.is_disabled(cannot), cannot
    page.fill("#prompt", "peace ____ war")
    page.locator("#why", has_text="fills no blanks").wait_for()
    assert page.is_disabled("#generate")
    page.fill("#prompt", "peace")
    page.locator("#why:empty").wait_for(state="attached")
    assert page.is_enabled("#generate")
