/** The text as spans, one a token, shown as it was after any number of steps. */

import { make, percent, tint } from "./dom.js";

/** A piece as it is shown: the white space around it stays outside its coloured pill. */
export function split(piece) {
  const [, before, body, after] = /^([ \t]*)([^]*?)(\n*)$/.exec(piece);
  if (body) return [before, body, after];
  if (after) return ["", "↵", after];
  return ["", piece ? "␣" : "▯", ""]; // "": bytes of a character that a later token completes
}

/** A piece in words, for labels that are read aloud. */
export const quoted = (piece) => `“${piece.replaceAll("\n", "↵")}”`;

/** A piece with its white space visible, to be compared with others. */
export const visible = (piece) => piece.replaceAll("\n", "↵").replaceAll(" ", "·") || "▯";

export class TextView {
  /** `card` shows what is known of the token under the pointer or the focus. */
  constructor(host, card) {
    this.host = host;
    this.card = card;
    this.recording = null;
    this.spans = [];
    this.step = 0;
    host.addEventListener("pointerover", (event) => this.#point(event.target));
    host.addEventListener("click", (event) => this.#point(event.target)); // a second tap, too
    host.addEventListener("pointerleave", () => this.card.hide());
    host.addEventListener("focusin", (event) => this.#point(event.target));
    host.addEventListener("focusout", () => this.card.hide());
    host.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Says why there is nothing to see yet. */
  empty(...words) {
    this.spans = [];
    this.host.replaceChildren(make("p", "empty", ...words));
    this.host.removeAttribute("role");
  }

  /** Lays out a recording that has begun: what is given, and blanks. */
  open(recording) {
    this.recording = recording;
    this.spans = recording.places.map((_, position) => {
      const span = make("span", "token");
      span.dataset.position = position;
      span.tabIndex = position ? -1 : 0; // one stop for Tab; arrows go from token to token
      span.setAttribute("role", "button");
      return span;
    });
    this.host.replaceChildren(...this.spans);
    this.host.setAttribute("role", "group");
    this.host.setAttribute("aria-label", "Tokens. Arrow keys go from token to token");
    this.step = -1;
    this.show(0);
  }

  /** The text as it was after `step` steps. */
  show(step) {
    const places = this.recording.places;
    this.spans.forEach((span, position) => this.#dress(span, places[position], position, step));
    this.step = step;
    this.card.refresh();
  }

  #dress(span, place, position, step) {
    const there = place.given || (place.step !== null && place.step <= step);
    const latest = there && place.step === step;
    const classes = ["token", !there ? "blank" : place.given ? "given" : "drawn step"];
    if (latest) classes.push("latest");
    if (latest && step > this.step) classes.push("fresh"); // it lands; scrubbing back, it does not
    if (this.recording.dropped(position)) classes.push("dropped");
    if (span.className !== classes.join(" ")) span.className = classes.join(" ");
    if (there && !place.given) tint(span, place.step, this.recording.total);
    const label = this.#words(place, position, there);
    if (span.getAttribute("aria-label") === label) return;
    span.setAttribute("aria-label", label);
    this.#fill(span, there ? place.piece : null);
  }

  #fill(span, piece) {
    if (piece === null) return span.replaceChildren(make("span", "pill"));
    const [before, body, after] = split(piece);
    span.replaceChildren(before, make("span", "pill", body), after);
  }

  #words(place, position, there) {
    if (!there) return `position ${position}, blank`;
    if (place.given) return `${quoted(place.piece)}, given`;
    return `${quoted(place.piece)}, step ${place.step}, ${percent(place.logprob)}`;
  }

  #point(target) {
    const span = target.closest(".token");
    if (!span) return;
    this.card.show(span, this.recording, Number(span.dataset.position));
  }

  /** Left and right go through the text, up and down through the steps that drew it. */
  #key(event) {
    const here = Number(event.target.closest(".token")?.dataset.position);
    if (Number.isNaN(here)) return;
    const last = this.spans.length - 1;
    const moves = {
      ArrowLeft: () => Math.max(0, here - 1),
      ArrowRight: () => Math.min(last, here + 1),
      Home: () => 0,
      End: () => last,
      ArrowUp: () => this.#neighbour(here, -1),
      ArrowDown: () => this.#neighbour(here, 1),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.#focus(moves[event.key]());
  }

  #focus(position) {
    for (const span of this.spans) span.tabIndex = -1;
    this.spans[position].tabIndex = 0;
    this.spans[position].focus();
  }

  /** The token drawn before (-1) or after (1) this one. */
  #neighbour(here, direction) {
    const drawn = this.recording.steps.flatMap(({ at }) => at.map(({ position }) => position));
    const index = drawn.indexOf(here);
    if (index < 0) return direction > 0 ? (drawn[0] ?? here) : here;
    return drawn[index + direction] ?? here;
  }
}
