"""Laws of the page around the text: settings, reasons, hints, narrow screens."""

from typing import Any

import pytest
from page_help import (
    LENGTH,
    a_browser,  # noqa: F401
    a_model,  # noqa: F401
    a_page,  # noqa: F401
    an_address,  # noqa: F401
    generate,
)


def test_what_cannot_work_is_off_and_says_why(page: Any):
    page.fill("#prompt", "peace")
    generate(page)
    before = page.inner_text("#canvas")
    page.locator("#length").fill(str(LENGTH))
    page.locator("#why", has_text=f"this model takes {LENGTH}").wait_for()
    assert page.is_disabled("#generate") and page.is_disabled("#race-start")
    page.keyboard.press("Control+Enter")
    page.locator("#error", has_text=f"this model takes {LENGTH}").wait_for()
    page.locator("#length").fill("0")
    page.locator("#why", has_text="nothing to write").wait_for()
    page.locator("#length").fill("9")
    page.locator("#why:empty").wait_for(state="attached")
    page.click("#tab-race")
    page.locator("#race-why", has_text="at least 10 tokens").wait_for()
    assert page.is_disabled("#race-start") and page.is_enabled("#generate")
    page.click("#tab-watch")
    assert page.inner_text("#canvas") == before


def test_text_and_settings_survive_a_reload_and_travel_in_the_address(page: Any, browser: Any):
    page.fill("#prompt", "war & ____ peace?")
    page.fill("#blanks input", "7")
    page.locator("#blanks input").press("Tab")
    for field, value in (("streams", "3"), ("temperature", "1.2"), ("length", "5"), ("seed", "77")):
        page.locator(f"#{field}").fill(value)
    page.select_option("#order-of", "random")

    def form(tab: Any) -> list[str]:
        ids = ("prompt", "streams", "length", "temperature", "top-p", "order-of", "seed")
        return [tab.input_value(f"#{one}") for one in ids] + [tab.input_value("#blanks input")]

    before = form(page)
    assert before == ["war & ____ peace?", "3", "5", "1.2", "0.9", "random", "77", "7"]
    page.reload()
    page.locator("#blanks input").wait_for()
    assert form(page) == before
    context = browser.new_context()
    other = context.new_page()
    other.goto(page.url)
    other.locator("#blanks input").wait_for()
    assert form(other) == before
    context.close()


def test_the_first_visit_is_told_what_a_stream_is(page: Any):
    assert "A stream is" in page.inner_text("#canvas")


def test_a_touch_device_gets_no_keyboard_hint_and_generate_stays_in_reach(
    browser: Any, address: str
):
    device = {"viewport": {"width": 390, "height": 700}, "has_touch": True, "is_mobile": True}
    context = browser.new_context(**device)
    page = context.new_page()
    page.goto(address)
    page.locator("#drawing svg").first.wait_for()
    assert not page.locator("#generate kbd").is_visible()
    for top in (0, 900, 5000):
        page.evaluate("top => window.scrollTo(0, top)", top)
        box = page.locator("#generate").bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 700
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Any, address: str, scheme: Any):
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.locator("#drawing svg").first.wait_for()
    generate(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.click("#tab-race")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    context.close()


def test_a_link_may_name_blanks_of_any_length(page: Any, browser: Any):
    """More than the model takes is said, and not written out first."""
    context = browser.new_context()
    other = context.new_page()
    lengths = "+".join(["1048576"] * 100)
    other.goto(page.url.split("#")[0] + f"#text={'a+____+' * 100}&blanks={lengths}&length=0")
    other.locator("#why", has_text=f"this model takes {LENGTH}").wait_for()
    assert other.input_value("#blanks input >> nth=0") == str(LENGTH + 1)
    context.close()
