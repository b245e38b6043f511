/** The race: the same text with few streams and with many.
 *
 * The two sides run one after the other, each alone: on one machine they would slow each other,
 * and the server would decode them together. Then both recordings start at once, each on the
 * server's clock of its own run. */

import { calm, count, find, make } from "./dom.js";
import { Recording } from "./recording.js";
import { TextView } from "./tokens.js";

const LEAST = 6; // seconds that the replay of the slower side takes at least
const CHOICES = [1, 2, 4, 8, 16];
const ROUNDS = 3; // runs of each side, of which the fastest counts
const TIE = 1.05; // times as fast, below which neither has won

/** One side: how many streams, its clock, its bar, its text. */
export class Lane {
  constructor(host, card, streams) {
    this.streams = make("select");
    for (const choice of CHOICES) this.streams.append(new Option(`S = ${choice}`, choice));
    this.streams.value = streams;
    this.streams.setAttribute("aria-label", "Streams");
    this.rate = make("b", "rate", "–");
    this.clock = make("span", "clock", "0.00 s");
    this.bar = make("div", "bar-fill");
    const head = make("div", "line", this.streams, make("span", "speed", this.rate, " tokens/s"));
    this.calls = make("span", "", "no run yet");
    const foot = make("div", "line hint", this.calls, this.clock);
    const text = make("div", "canvas small-canvas");
    host.append(head, make("div", "bar-track", this.bar), foot, text);
    this.host = host;
    this.text = new TextView(text, card);
    this.text.empty("waiting for the start");
    this.recording = null;
    this.ran = 0; // streams of the run, whatever is chosen meanwhile
  }

  /** Forgets the last run; the next one has the streams that are chosen now. */
  reset() {
    this.recording = null;
    this.ran = Number(this.streams.value);
    this.text.empty("waiting for the start");
    this.rate.textContent = "–";
    this.calls.textContent = "";
    this.clock.textContent = "0.00 s";
    this.bar.style.setProperty("--share", 0);
    this.host.classList.remove("won");
  }

  /** Reads the events of this side's run and shows them as they come; keeps its fastest. */
  async run(stream) {
    const before = this.recording;
    this.recording = new Recording();
    for await (const event of stream) {
      this.recording.add(event);
      if (event.type === "start") this.text.open(this.recording);
      if (event.type !== "start") this.show(this.recording.steps.length);
    }
    if (before && before.end.seconds < this.recording.end.seconds) {
      this.recording = before;
      this.text.open(before);
    }
  }

  /** How it stood after `step` steps. */
  show(step, seconds = this.recording.seconds(step)) {
    const { recording } = this;
    const written = recording.written(step);
    if (this.text.step !== step) this.text.show(step);
    this.clock.textContent = `${seconds.toFixed(2)} s`;
    this.calls.textContent = `${written} tokens in ${count(step, "call")}`;
    this.bar.style.setProperty("--share", recording.blanks ? written / recording.blanks : 0);
    const rate = this.done(step) ? this.perSecond : written / Math.max(seconds, 1e-3);
    this.rate.textContent = step ? rate.toFixed(rate < 10 ? 1 : 0) : "–";
  }

  done(step) {
    return this.recording.end !== null && step >= this.recording.steps.length;
  }

  get perSecond() {
    return this.recording.end.tokens_per_second;
  }
}

/** Replays both from the start together; the slower takes at least LEAST seconds. */
export function replay(lanes, onEnd) {
  const last = Math.max(...lanes.map((lane) => lane.recording.end.seconds));
  const slowed = Math.max(1, LEAST / last);
  let frame = 0;
  const began = performance.now();
  for (const lane of lanes) lane.host.classList.remove("won");
  const tick = (now) => {
    const seconds = calm() ? last : Math.max(0, now - began) / 1000 / slowed;
    for (const lane of lanes) {
      const { steps, end } = lane.recording;
      const step = seconds >= end.seconds ? steps.length : lane.recording.stepsBy(seconds);
      lane.show(step, Math.min(seconds, end.seconds));
    }
    if (seconds < last) frame = requestAnimationFrame(tick);
    else onEnd();
    const first = lanes.find((lane) => seconds >= lane.recording.end.seconds);
    if (first && times(lanes) >= TIE) fastest(lanes).host.classList.add("won");
  };
  frame = requestAnimationFrame(tick);
  return { slowed, stop: () => cancelAnimationFrame(frame) };
}

const fastest = (lanes) =>
  lanes.reduce((a, b) => (a.recording.end.seconds <= b.recording.end.seconds ? a : b));

/** How many times as fast the faster side was. */
function times(lanes) {
  const [a, b] = lanes.map((lane) => lane.recording.end.seconds);
  return Math.max(a, b) / Math.min(a, b);
}

/** The result in one line. */
export function verdict(lanes) {
  const fast = fastest(lanes);
  const slow = lanes[0] === fast ? lanes[1] : lanes[0];
  const said = ({ recording }) => count(recording.end.calls, "model call");
  if (times(lanes) < TIE) {
    const speeds = lanes.map((lane) => lane.perSecond.toFixed(0)).join(" and ");
    const percent = ((TIE - 1) * 100).toFixed(0);
    return `A tie: ${speeds} tokens/s, less than ${percent} % apart (best of ${ROUNDS}).`;
  }
  return (
    `Best of ${ROUNDS}: S = ${fast.ran} was ${times(lanes).toFixed(1)} times as fast as S = ${slow.ran}: ` +
    `${said(fast)} instead of ${slow.recording.end.calls}, ` +
    `${fast.perSecond.toFixed(0)} tokens/s instead of ${slow.perSecond.toFixed(0)}.`
  );
}

/** The race view: its buttons, and the two lanes. */
export class Race {
  /** `request({streams, signal})` asks for one side; `begin` and `finish` hold the machine. */
  constructor({ card, request, begin, finish }) {
    Object.assign(this, { request, begin, finish });
    const hosts = document.querySelectorAll("#race .lane");
    this.lanes = [new Lane(hosts[0], card, 1), new Lane(hosts[1], card, 4)];
    this.replaying = null;
    find("race-start").addEventListener("click", () => this.start());
    find("race-again").addEventListener("click", () => this.#replay());
  }

  /** Runs one side after the other, then replays both together. */
  async start() {
    this.replaying?.stop();
    const controller = this.begin();
    find("race-again").hidden = true;
    find("race-result").textContent = "";
    for (const lane of this.lanes) lane.reset();
    let error = null;
    try {
      for (let round = 1; round <= ROUNDS; round += 1) {
        for (const lane of this.lanes) {
          this.#say(`S = ${lane.ran} runs alone, round ${round} of ${ROUNDS}…`);
          const { signal } = controller;
          await lane.run(await this.request({ streams: lane.ran, signal }));
        }
      }
    } catch (failure) {
      error = failure;
    }
    this.finish(controller, error);
    if (error) this.#say(error.name === "AbortError" ? "Stopped." : "The race broke off.");
    else this.#replay();
  }

  #replay() {
    this.replaying?.stop();
    find("race-again").hidden = true;
    find("race-result").textContent = "";
    this.replaying = replay(this.lanes, () => {
      find("race-again").hidden = false;
      find("race-result").textContent = verdict(this.lanes);
    });
    const { slowed } = this.replaying;
    const pace = slowed > 1.05 ? `slowed ${slowed.toFixed(slowed < 10 ? 1 : 0)} times` : "as fast";
    this.#say(`Both together, each on the clock of its own run, ${pace}.`);
  }

  #say(words) {
    find("race-state").textContent = words;
  }
}
