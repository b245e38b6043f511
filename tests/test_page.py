"""Laws of the page, in a real browser on a real server: what is asked for lands, the replay tells
the same story, and what a model writes is text, whatever it writes."""

import json
from typing import Any

from page_help import (
    LENGTH,
    a_browser,  # noqa: F401
    a_model,  # noqa: F401
    a_page,  # noqa: F401
    an_address,  # noqa: F401
    classes,
    generate,
)

# a tiny model is done before a key from here arrives
STOP_AT_THE_THIRD = """() => {
  const watch = new MutationObserver(() => {
    if (document.querySelectorAll("#canvas .token.drawn").length < 3) return;
    watch.disconnect();
    document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  });
  watch.observe(document.getElementById("canvas"), { subtree: true, childList: true });
}"""


NEXT_FRAMES = "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"


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
    page.locator(".lane select").nth(1).select_option("16")  # for the next race, not for this one
    page.click("#race-again")
    page.locator("#race-result:not(:empty)").wait_for()
    assert "S = 16" not in page.inner_text("#race-result")


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
    page.wait_for_function("document.querySelectorAll('#drawing svg').length === 3")
    page.evaluate(NEXT_FRAMES)  # what was put into the page had its chance to run
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


def test_equal_sides_of_a_race_tie_or_are_near_it(page: Any):
    """The verdict is by the clocks of the fastest runs, and a difference below 5 % is a tie."""
    page.locator("#length").fill("12")
    page.click("#tab-race")
    verdict = page.evaluate("""async () => {
      const { verdict } = await import("/page/race.js");
      const lane = (streams, seconds) => ({
        streams: { value: 16 },
        ran: streams,
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


# the form is previewed after a pause in typing; here, when the test says so
HOLD_PREVIEW = """() => {
  const timeout = window.setTimeout;
  window.preview = () => {};
  window.setTimeout = (call, time, ...more) => {
    if (time !== 150) return timeout(call, time, ...more);
    window.preview = () => call(...more);
  };
}"""
PREVIEW = "() => window.preview()"


def test_a_server_with_another_model_refuses_the_tokens_of_the_last(page: Any):
    """They would read as something else."""

    def to_another(route: Any) -> None:
        body = json.loads(route.request.post_data)
        assert body["tokens"] and body["model"]
        route.continue_(post_data=json.dumps(body | {"model": body["model"] + "-before"}))

    page.route("**/v1/infill", to_another)
    page.fill("#prompt", "peace ____ and")
    page.click("#generate")
    page.locator("#error:not(:empty)").wait_for()
    assert "Reload this page" in page.inner_text("#error")


def test_a_text_that_the_server_cut_is_not_called_done(page: Any):
    def cut(route: Any) -> None:
        events = route.fetch().text().replace('"type":"end"', '"type":"end","cut":"time"')
        route.fulfill(body=events, content_type="text/event-stream")

    page.route("**/v1/infill", cut)
    generate(page)
    assert page.inner_text("#facts").startswith("Cut, its time was up")


def test_a_late_preview_does_not_cover_what_was_written(page: Any):
    page.evaluate(HOLD_PREVIEW)
    page.select_option("#order-of", "backward")
    generate(page)
    words = page.inner_text("#order-words")
    page.evaluate(PREVIEW)
    assert page.inner_text("#order-words") == words
    assert page.locator("#drawing svg").count() == 3


def test_every_kind_of_order_is_drawn(page: Any):
    for kind in ("left_to_right", "strided", "shuffled", "random", "masking"):
        page.select_option("#drawn", kind)
        page.locator('#drawing svg[aria-label^="Strict mask: 16 positions"]').wait_for()
    page.evaluate(HOLD_PREVIEW)
    for order in ("random", "backward"):
        page.select_option("#order-of", order)
        page.select_option("#drawn", "canvas")
        generate(page)
        page.evaluate(PREVIEW)
        assert page.locator("#drawing svg").count() == 3
        assert "12 tokens · 12 model calls" in page.inner_text("#facts")
