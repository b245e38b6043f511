/** The sliders: what the reader asked for, and what that means in words. */

import { find } from "./dom.js";

const FREE = 48; // tokens after a text without blanks; after one with blanks, none

export class Settings {
  constructor(onChange) {
    this.onChange = onChange;
    this.limits = { streams: 16, length: 128, anyOrder: true };
    this.after = { blanks: 0, free: FREE }; // the length slider serves both, each keeps its value
    this.mode = "free";
    for (const id of ["streams", "length", "temperature", "top-p", "order-of", "seed"]) {
      find(id).addEventListener("input", () => this.#changed());
    }
    find("dice").addEventListener("click", () => {
      find("seed").value = Math.floor(Math.random() * 100000);
      this.#changed();
    });
    this.#speak();
  }

  /** What this server and its model can do. */
  limit({ streams, length, anyOrder }) {
    this.limits = { streams, length, anyOrder };
    find("streams").max = Math.min(16, streams);
    find("length").max = length;
    this.after.free = Math.min(FREE, Math.ceil(length / 2));
    this.#restore();
  }

  /** With blanks, the text usually ends where it ends; without, the model writes on. */
  hasBlanks(yes) {
    if ((this.mode === "blanks") === yes) return;
    this.mode = yes ? "blanks" : "free";
    this.#restore();
  }

  /** The sliders were set by other means than the reader's hand. */
  refresh() {
    this.#speak();
  }

  /** Sets the length, as an example does. */
  set length(tokens) {
    this.after[this.mode] = Math.min(tokens, this.limits.length);
    this.#restore();
  }

  get length() {
    return Number(find("length").value);
  }

  get order() {
    return this.limits.anyOrder ? find("order-of").value : "strided";
  }

  /** Streams that make sense for so many blanks: orders of one token a call have one. */
  streamsFor(blanks) {
    if (this.order !== "strided") return 1;
    return Math.max(1, Math.min(Number(find("streams").value), this.limits.streams, blanks));
  }

  /** Model calls for so many blanks. */
  callsFor(blanks) {
    const streams = this.streamsFor(blanks);
    return blanks && streams + Math.ceil(blanks / streams) - 1;
  }

  /** How tokens are chosen, as /v1/infill takes it. */
  get sampling() {
    const temperature = Number(find("temperature").value);
    const topP = Number(find("top-p").value);
    // the likeliest token needs no filter, and one that keeps everything is none
    const filter = temperature > 0 && topP < 1 ? { top_p: topP } : {};
    const seed = Math.max(0, Math.floor(find("seed").valueAsNumber || 0));
    return { temperature, ...filter, seed };
  }

  /** The order of so many blanks, as /v1/infill takes it. */
  orderOf(blanks) {
    if (this.order === "random") return { order: "random", streams: 1 };
    if (this.order === "strided") return { order: "strided", streams: this.streamsFor(blanks) };
    return { order: Array.from({ length: blanks }, (_, i) => blanks - 1 - i), streams: 1 };
  }

  #restore() {
    find("length").value = this.after[this.mode];
    this.#speak();
  }

  #changed() {
    this.after[this.mode] = this.length;
    this.#speak();
    this.onChange();
  }

  /** The value of each slider beside it, and as a filled track. */
  #speak() {
    const temperature = Number(find("temperature").value);
    const says = {
      streams: find("streams").value,
      length: this.length ? `${this.length} after the text` : "blanks only",
      temperature: temperature ? temperature.toFixed(2) : "0, the likeliest",
      "top-p": Number(find("top-p").value).toFixed(2),
    };
    for (const [id, words] of Object.entries(says)) {
      const slider = find(id);
      slider.parentElement.querySelector("output").value = words;
      slider.setAttribute("aria-valuetext", words);
      const share = (slider.value - slider.min) / (slider.max - slider.min || 1);
      slider.style.setProperty("--done", share);
    }
    find("order-of").disabled = !this.limits.anyOrder;
    find("streams").disabled = this.order !== "strided" || !this.limits.anyOrder;
    find("top-p").disabled = !temperature;
  }
}
