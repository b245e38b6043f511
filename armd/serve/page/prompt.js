/** The prompt box: text with blanks, how long each blank is, and the tokens that it makes. */

import { ask } from "./api.js";
import { button, make } from "./dom.js";

// as armd's templates: two or more underscores; the space before them goes with them, because
// tokens carry the space before a word
const BLANK = / ?_{2,}/g;
const NEW_LENGTH = 3; // tokens of a blank that was typed

export class Prompt {
  /** `parts`: box, mirror, list and mark elements. `onChange()` after every change. */
  constructor(parts, onChange) {
    Object.assign(this, parts);
    this.onChange = onChange;
    this.lengths = []; // of the blanks, in tokens
    this.longest = 128;
    this.known = new Map(); // text -> its tokens, so that typing asks only for what is new
    this.box.addEventListener("input", () => this.#edited());
    this.mark.addEventListener("click", () => this.markBlank());
    this.box.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "b" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.markBlank();
    });
  }

  get text() {
    return this.box.value;
  }

  get blanks() {
    return [...this.box.value.matchAll(BLANK)];
  }

  /** Sets the text, and the lengths of its blanks. */
  set(text, lengths = []) {
    this.box.value = text;
    const most = this.longest + 1; // a link may name any: more need not be written out to be too many
    const length = (index) => Math.min(lengths[index] ?? NEW_LENGTH, most);
    this.lengths = this.blanks.map((_, index) => length(index));
    this.#show();
  }

  /** Turns the selected words into a blank of as many tokens, or puts a blank at the caret. */
  async markBlank() {
    const { selectionStart: from, selectionEnd: to, value } = this.box;
    const words = value.slice(from, to);
    const [, before, body, after] = /^(\s*)([^]*?)(\s*)$/.exec(words);
    const led = from > 0 && !before && value[from - 1] === " " ? " " : before; // its own space
    const tokens = body.trim() ? await this.#encode(led + body, from > 0).catch(() => []) : [];
    this.box.focus();
    this.box.setSelectionRange(from, to);
    this.#type(`${before}____${after}`);
    const index = this.blanks.findIndex((blank) => blank.index + blank[0].length > from);
    if (tokens.length && index >= 0) this.#resize(index, tokens.length);
  }

  /** Tokens and which of them are given: the text with its blanks, then `after` blanks more. */
  async tokens(after, { signal } = {}) {
    const around = this.box.value.split(BLANK);
    const given = await Promise.all(
      around.map((part, index) => this.#encode(part, index > 0, signal)),
    );
    const blanks = [...this.lengths, after];
    const tokens = given.flatMap((part, index) => [...part, ...Array(blanks[index]).fill(0)]);
    const known = given.flatMap((part, index) => [
      ...part.map(() => true),
      ...Array(blanks[index]).fill(false),
    ]);
    return { tokens, known };
  }

  /** `continues`: the text stands behind another. */
  async #encode(text, continues, signal) {
    if (!text) return [];
    const key = `${continues} ${text}`;
    if (!this.known.has(key)) {
      if (this.known.size > 500) this.known.clear();
      this.known.set(key, (await ask("v1/tokenize", { text, continues }, { signal })).tokens);
    }
    return this.known.get(key);
  }

  /** Types as the reader would, so that undo takes it back. */
  #type(text) {
    if (document.execCommand("insertText", false, text)) return;
    this.box.setRangeText(text, this.box.selectionStart, this.box.selectionEnd, "end");
    this.#edited();
  }

  /** Blanks that came or went stood at the caret; the others keep their lengths. */
  #edited() {
    const caret = this.box.selectionStart;
    const { blanks } = this;
    const more = blanks.length - this.lengths.length;
    const before = blanks.filter((blank) => blank.index + blank[0].length <= caret).length;
    if (more > 0) {
      this.lengths.splice(Math.max(0, before - more), 0, ...Array(more).fill(NEW_LENGTH));
    } else if (more < 0) {
      this.lengths.splice(before, -more);
      this.lengths.length = blanks.length; // a paste over everything
    }
    this.#show();
  }

  #resize(index, length) {
    this.lengths[index] = Math.max(1, Math.min(this.longest, Math.round(length) || 1));
    this.#show();
  }

  #show() {
    this.#paint();
    this.#listBlanks();
    this.onChange();
  }

  /** The same text behind the box, with its blanks painted. */
  #paint() {
    const text = this.box.value;
    const parts = [];
    let end = 0;
    this.blanks.forEach((blank, index) => {
      const lines = blank[0].search("_");
      parts.push(text.slice(end, blank.index + lines));
      const painted = make("mark", "", blank[0].slice(lines));
      painted.dataset.length = this.lengths[index];
      parts.push(painted);
      end = blank.index + blank[0].length;
    });
    this.mirror.replaceChildren(...parts, text.slice(end), "\n");
  }

  /** A stepper for each blank. Rows that are there stay, so that their focus does. */
  #listBlanks() {
    const rows = this.list.children;
    while (rows.length > this.lengths.length) this.list.lastChild.remove();
    while (rows.length < this.lengths.length) this.list.append(this.#row(rows.length));
    this.lengths.forEach((length, index) => {
      rows[index].querySelector("input").value = length;
    });
    this.list.hidden = !this.lengths.length;
  }

  #row(index) {
    const name = `blank ${index + 1}`;
    const field = make("input");
    Object.assign(field, { type: "number", min: 1, max: this.longest, step: 1 });
    field.setAttribute("aria-label", `Tokens of ${name}`);
    field.addEventListener("change", () => this.#resize(index, field.valueAsNumber));
    const change = (by) => () => this.#resize(index, this.lengths[index] + by);
    return make(
      "li",
      "",
      make("span", "label", name),
      button("small", "−", `${name} shorter`, change(-1)),
      field,
      button("small", "+", `${name} longer`, change(1)),
    );
  }
}
