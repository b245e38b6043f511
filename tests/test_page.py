"""Laws of the page, in a real browser on a real server: what is asked for lands, the replay tells
the same story, and what a model writes is text, whatever it writes."""

import json
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
    config = folder / "model" / "tokenizer_config.json"
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
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


def test_equal_sides_of_a_race_tie_or_are_near_it(page: Any):
    """The verdict is by the clocks of the fastest runs, and a difference below 5 % is a tie."""
    page.locator("#length").fill("12")
    page.click("#tab-race")
    verdict = page.evaluate("""async () => {
      const { verdict } = await import("/page/race.js");
      const lane = (streams, seconds) => ({
        streams: { value: streams },
        perSecond: 10 / seconds,
        recording: { end: { seconds, calls: 10 } },
      });
      return [verdict([lane(1, 1), lane(4, 0.97)]), verdict([lane(1, 1), lane(4, 0.5)])];
    }""")
    assert verdict[0].startswith("A tie") and "S = 4 was 2.0 times as fast" in verdict[1]


def test_a_chat_goes_on_in_turns_and_is_text(page: Any):
    page.locator("#length").fill("2")  # this model writes long tokens
    page.click("#tab-chat")
    assert page.is_disabled("#chat-send")
    for turn in (1, 2):
        page.fill("#chat-box", "<img src=x onerror=hacked=1>")
        page.keyboard.press("Enter")
        page.locator("#chat-log .assistant").nth(turn - 1).wait_for()
        page.locator("#chat-send").wait_for()
    assert page.locator("#chat-log li").count() == 4
    assert page.locator("#chat-log img").count() == 0
    assert page.evaluate("window.hacked === undefined")
    assert page.inner_text("#error") == ""


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
