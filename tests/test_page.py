"""Laws of the page, in a real browser on a real server: what is asked for lands, the replay tells
the same story, and what a model writes is text, whatever it writes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from hostile import tokenizer

import armd

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install it")
pytest.importorskip("fastapi", reason="no server: pip install 'armd[serve]'")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no chromium, chromium-browser or google-chrome here", allow_module_level=True)
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
QUIET = "--disable-background-networking --disable-component-update"
LENGTH = 256


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of random weights, saved with that tokenizer."""
    folder = tmp_path_factory.mktemp("page")
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_layers": 3, "n_heads": 2, "max_length": LENGTH}
    armd.ArmdLM(armd.ArmdConfig(vocab_size=513, **sizes)).save_pretrained(folder / "model")
    tokenizer().save(folder / "aside")
    for file in (folder / "aside").iterdir():
        file.rename(folder / "model" / file.name)
    return folder / "model"


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    """Where a server of that model answers."""
    command = [sys.executable, "-m", "armd.cli", "serve", str(model), "--port", "0"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as server:
        said = ""
        assert server.stdout is not None
        for line in server.stdout:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            raise AssertionError(f"the server did not start:\n{said}")
        yield found.group()
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=CHROMIUM, args=f"{FLAGS} {QUIET}".split(), timeout=120_000
        )
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, opened; at the end nothing may have gone wrong in it, nor left the server."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)  # two busy cores are slow at times
    tab, errors, asked = context.new_page(), [], set()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    tab.goto(address)
    tab.locator("#drawing svg").first.wait_for()
    yield tab
    context.close()
    assert errors == []
    assert asked == {urlsplit(address).netloc}


# a tiny model is done before a key from here arrives
STOP_AT_THE_THIRD = """() => {
  const watch = new MutationObserver(() => {
    if (document.querySelectorAll("#canvas .token.drawn").length < 3) return;
    watch.disconnect();
    document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  });
  watch.observe(document.getElementById("canvas"), { subtree: true, childList: true });
}"""


def generate(page: Any) -> None:
    page.click("#generate")
    page.locator("#facts", has_text="tokens/s").wait_for()


def classes(page: Any, kind: str) -> int:
    return page.locator(f"#canvas .token.{kind}").count()


def test_a_blank_is_marked_and_every_token_lands(page: Any):
    page.fill("#prompt", "peace and war")
    page.locator("#prompt").evaluate("box => box.setSelectionRange(6, 9)")
    page.keyboard.press("Control+b")
    page.locator("#blanks input").wait_for()
    assert page.input_value("#prompt") == "peace ____ war"
    assert page.input_value("#blanks input") == "4"  # the tokens of " and"
    page.click("#blanks button >> nth=1")
    assert page.input_value("#blanks input") == "5"
    generate(page)
    assert (classes(page, "given"), classes(page, "drawn"), classes(page, "blank")) == (9, 5, 0)
    given = page.locator("#canvas .token.given").evaluate_all("all => all.map(t => t.textContent)")
    assert "".join(given).replace("␣", " ") == "peace war"


def test_a_prompt_is_continued(page: Any):
    page.fill("#prompt", "peace")
    page.locator("#length").fill("40")
    page.locator("#streams").fill("4")
    page.locator("#count", has_text="5 given + 40 to write in 13 model calls").wait_for()
    generate(page)
    assert "40 tokens · 13 model calls" in page.inner_text("#facts")
    assert (classes(page, "given"), classes(page, "drawn")) == (5, 40)


def test_the_scrubber_replays_what_happened(page: Any):
    page.fill("#prompt", "peace")
    page.locator("#length").fill("24")
    page.locator("#streams").fill("4")
    generate(page)
    final, scrubber = page.inner_text("#canvas"), page.locator("#scrubber")
    assert scrubber.get_attribute("max") == "9"
    scrubber.fill("0")
    assert (classes(page, "drawn"), classes(page, "blank")) == (0, 24)
    landed = []
    for _ in range(9):
        scrubber.press("ArrowRight")
        landed.append(classes(page, "drawn"))
    assert landed == [1, 2, 3, 4, 8, 12, 16, 20, 24]  # the heads one by one, then four a call
    assert page.inner_text("#canvas") == final
    scrubber.press("Home")
    page.select_option("#pace", "real")
    page.click("#play")
    page.locator("#step", has_text="step 9 of 9").wait_for()
    assert page.inner_text("#canvas") == final


def test_equal_seeds_write_equal_texts(page: Any):
    page.fill("#prompt", "peace")
    texts = []
    for seed in ("1", "2", "1"):
        page.fill("#seed", seed)
        generate(page)
        texts.append(page.inner_text("#canvas"))
    assert texts[0] == texts[2] != texts[1]


def test_the_keyboard_reaches_every_token_and_its_rivals(page: Any):
    page.fill("#prompt", "ab")
    page.locator("#length").fill("6")
    page.keyboard.press("Control+Enter")
    page.locator("#facts", has_text="tokens/s").wait_for()
    page.locator("#canvas .token").first.focus()
    assert "given" in page.inner_text("#card")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.dataset.position")
    assert focused == "3"
    shares = page.locator("#card .share").all_inner_texts()
    assert len(shares) >= 5 and all("%" in share for share in shares)
    assert page.locator("#card .chosen").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()


def test_the_race_ends_with_four_streams_in_fewer_calls(page: Any):
    page.fill("#prompt", "peace")
    page.locator("#length").fill("32")
    page.click("#tab-race")
    page.click("#race-start")
    page.locator("#race-result:not(:empty)").wait_for()
    calls = page.locator(".lane .hint span:first-child").all_inner_texts()
    assert calls == ["32 tokens in 32 calls", "32 tokens in 11 calls"]
    assert page.locator(".lane .token.drawn").count() == 64
    assert "tokens/s" in page.inner_text("#race-result")


def test_what_a_model_writes_is_text(page: Any):
    page.fill("#prompt", "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>")
    page.locator("#length").fill("150")
    page.locator("#temperature").fill("1")
    page.locator("#top-p").fill("1")
    generate(page)
    written = page.inner_text("#canvas")
    assert "<script>window.hacked=" in written and "onerror=" in written
    for token in range(20, 60):  # cards show tokens and their rivals
        page.locator("#canvas .token").nth(token).hover()
    page.select_option("#drawn", "random")
    page.select_option("#drawn", "canvas")  # drawn again, with the pieces in its titles
    page.wait_for_timeout(300)
    inside = page.locator("#canvas, #card, #mirror, #drawing").locator(
        "script, img, iframe, svg svg"
    )
    assert inside.count() == 0
    assert page.evaluate("window.hacked === undefined")


def test_stopping_keeps_what_has_landed_and_frees_the_place(page: Any, address: str):
    page.fill("#prompt", "____")
    page.fill("#blanks input", str(LENGTH))
    page.locator("#streams").fill("1")
    page.evaluate(STOP_AT_THE_THIRD)
    page.click("#generate")
    page.locator("#facts", has_text="stopped after").wait_for()
    landed = int(page.inner_text("#facts").split()[2])
    assert classes(page, "drawn") == landed < LENGTH
    assert page.locator("#generate").is_visible()
    assert page.inner_text("#error") == ""
    taken = "armd_slots_taken 1"
    while taken in page.request.get(f"{address}/metrics").text():  # a pass may be under way
        page.wait_for_timeout(50)
    generate(page)
    assert classes(page, "drawn") == LENGTH


def test_a_mistake_is_one_line_and_leaves_the_canvas(page: Any):
    page.fill("#prompt", "peace")
    generate(page)
    before = page.inner_text("#canvas")
    page.locator("#length").fill(str(LENGTH))
    page.click("#generate")
    page.locator("#error:not(:empty)").wait_for()
    assert str(LENGTH) in page.inner_text("#error")
    assert page.inner_text("#canvas") == before
    page.locator("#length").fill("0")
    page.click("#generate")
    page.locator("#error", has_text="nothing to write").wait_for()


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


# a pause in typing, made long: the form is previewed after a text was written
LATE = """() => {
  const timeout = window.setTimeout;
  window.setTimeout = (call, time, ...more) => timeout(call, time === 150 ? 2500 : time, ...more);
}"""


def test_a_late_preview_does_not_cover_what_was_written(page: Any):
    page.evaluate(LATE)
    page.select_option("#order-of", "backward")
    generate(page)
    words = page.inner_text("#order-words")
    page.wait_for_timeout(3000)
    assert page.inner_text("#order-words") == words
    assert page.locator("#drawing svg").count() == 3


def test_every_kind_of_order_is_drawn(page: Any):
    for kind in ("left_to_right", "strided", "shuffled", "random", "masking"):
        page.select_option("#drawn", kind)
        page.locator('#drawing svg[aria-label^="Strict mask: 16 positions"]').wait_for()
    for order in ("random", "backward"):
        page.select_option("#order-of", order)
        page.select_option("#drawn", "canvas")
        generate(page)
        page.wait_for_timeout(300)  # longer than the pause after which a form is previewed
        assert page.locator("#drawing svg").count() == 3
        assert "12 tokens · 12 model calls" in page.inner_text("#facts")
