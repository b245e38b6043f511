/** Which order is drawn: that of the text shown, of the text to come, or one of the known kinds. */

import { ask } from "./api.js";
import { count, find } from "./dom.js";
import { Drawing } from "./drawing.js";

const EXAMPLE = { length: 16, steps: 5, rho: 5 }; // sizes of the kinds drawn for themselves
const PREVIEW = 512; // tokens of the longest order that the server works out without writing
const WORDS = {
  left_to_right: "One token at a time, as a GPT writes: the mask is a triangle.",
  strided: "The heads of the streams one by one, then one token of each stream a call.",
  shuffled: "Left to right, but a few places are shuffled: how the model is trained at first.",
  random: "One token at a time, anywhere: how the model learns to know both sides.",
  masking: "What was masked last is drawn first, in blocks of random size.",
};

export class OrderView {
  /** `settings` say the streams and the seed of the kinds drawn for themselves. */
  constructor(settings) {
    this.settings = settings;
    this.drawing = new Drawing(find("drawing"));
    this.recording = null; // the one drawn now, or null
    this.asked = 0; // answers to earlier questions are late, and not drawn
    this.show = () => {}; // draws the order of the text shown again
    find("drawn").addEventListener("change", () => this.#chosen());
    this.#empty("The order of the text is drawn here.");
  }

  get ofCanvas() {
    return find("drawn").value === "canvas";
  }

  /** The order of what is being written or was written, marked at `step`. */
  record(recording, step) {
    this.show = () => this.record(recording, step);
    if (!this.ofCanvas || !recording.start) return;
    this.asked += 1;
    const { known, order } = recording.start;
    const landed = recording.steps.length;
    if (this.recording !== recording || (recording.end && this.landed !== landed)) {
      const pieces = recording.places.map(({ piece }) => piece);
      this.drawing.open(order, { known, pieces });
      Object.assign(this, { recording, landed: recording.end ? landed : -1 });
      this.#say(known, order, "");
    }
    this.drawing.show(step);
  }

  /** The order that the form asks for, before anything is written. */
  preview(known) {
    this.show = () => this.preview(known);
    if (!this.ofCanvas) return this.#chosen();
    this.recording = null;
    const blanks = known.filter((given) => !given).length;
    const asked = (this.asked += 1);
    if (!blanks) return this.#empty("Nothing to write yet.");
    if (this.settings.order === "random" || known.length > PREVIEW) {
      return this.#empty("This order is drawn when the text is written.");
    }
    if (this.settings.order === "backward") return this.#open(backward(known), known);
    const streams = this.settings.streamsFor(blanks);
    const request = { kind: "infill", length: known.length, known, streams };
    this.#ask(request, asked, (order) => this.#open(order, known));
  }

  #empty(words) {
    this.drawing.empty(words);
    find("order-words").textContent = "";
  }

  #open(order, known) {
    this.drawing.open(order, { known });
    this.drawing.show(null);
    this.#say(known, order, " This is what Generate will do.");
  }

  #say(known, { block }, more) {
    const given = known.filter(Boolean).length;
    const calls = new Set(block).size - given;
    const written = known.length - given;
    const start = given ? `${given} given, then ` : "";
    find("order-words").textContent =
      `${start}${count(written, "token")} in ${count(calls, "model call")}.${more}`;
  }

  /** One of the kinds, drawn for itself. */
  #chosen() {
    if (this.ofCanvas) {
      this.recording = null;
      return this.show();
    }
    const kind = find("drawn").value;
    const streams = Math.min(Number(find("streams").value), EXAMPLE.length);
    const { seed } = this.settings.sampling;
    this.#ask({ kind, ...EXAMPLE, streams, seed }, (this.asked += 1), (order) => {
      this.drawing.open(order);
      this.drawing.show(null);
      find("order-words").textContent = WORDS[kind];
    });
  }

  async #ask(request, asked, onOrder) {
    try {
      const order = await ask("v1/order", request);
      if (asked === this.asked) onOrder(order);
    } catch (error) {
      if (asked === this.asked) this.#empty(error.message);
    }
  }
}

/** What is given, left to right, then the blanks from the last to the first. */
function backward(known) {
  const places = known.map((_, position) => position);
  const given = places.filter((position) => known[position]);
  const position = [...given, ...places.filter((place) => !known[place]).reverse()];
  return { position, block: places };
}
