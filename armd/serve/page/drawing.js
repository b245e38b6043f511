/** An order, drawn as the paper draws it: masking process, permuted sequence, strict mask.
 *
 * All three are made of few rectangles. What a token's block may see is a staircase in the order
 * of generation, so the mask takes one rectangle a block, not one a pair of tokens. */

import { count, make, shape, tint } from "./dom.js";
import { quoted } from "./tokens.js";

const WIDTH = 400; // of every drawing, in its own units
const LEFT = 22; // room for the numbers at the side
const LINES = 64; // up to so many tokens cells have edges
const LABELS = 32; // and up to so many, numbers
const ACROSS = 24; // tokens in a line of the sequence
const APART = 13; // numbers at the sides are at least so far apart

export class Drawing {
  constructor(host) {
    this.host = host;
    this.marks = []; // what changes with the step: functions of it
  }

  /** Says why there is nothing to draw. */
  empty(words) {
    this.marks = [];
    this.host.replaceChildren(make("p", "empty", words));
  }

  /** Draws `order` {position, block}; `known` says what is given, `pieces` what stands there. */
  open(order, { known = [], pieces = [] } = {}) {
    this.marks = [];
    const plan = planned(order, known, pieces);
    this.host.replaceChildren(
      figure("which positions are still masked", this.#process(plan), "process"),
      figure("the permuted sequence: positions, block by block", this.#sequence(plan), "sequence"),
      figure("the strict mask: a token sees earlier blocks only", this.#mask(plan), "mask"),
    );
  }

  /** Marks how far it has come after `step` model calls; null takes the marks away. */
  show(step) {
    for (const mark of this.marks) mark(step);
  }

  /** Row t: what is written after t calls. A position is coloured from its call on. */
  #process(plan) {
    const { n, calls, call } = plan;
    const rows = calls + 1;
    const wide = (WIDTH - LEFT) / n;
    const high = Math.max(Math.min(28, 230 / rows), 2.5);
    const drawing = picture(rows * high + 16, `Masking process: ${summary(plan)}`);
    const ground = [LEFT, 0, WIDTH - LEFT, rows * high];
    drawing.append(cell(...ground, "masked"));
    for (let j = 0; j < n; j++) {
      const y = call[j] * high;
      const column = cell(LEFT + j * wide, y, wide, rows * high - y, call[j] ? "" : "given");
      drawing.append(coloured(column, plan, j));
    }
    edges(drawing, ground, n, rows);
    for (let j = 0; j < n && n <= LABELS; j++) {
      if (!call[j]) continue;
      label(drawing, LEFT + (j + 0.5) * wide, (call[j] + 0.5) * high, j, Math.min(high, wide));
    }
    for (let j = 0; j < n; j += every(wide)) {
      drawing.append(text(LEFT + (j + 0.5) * wide, rows * high + 11, j, "tick"));
    }
    for (let t = 0; t < rows; t += every(high)) {
      drawing.append(text(LEFT - 6, (t + 0.5) * high + 3, t, "tick end"));
    }
    const cover = cell(LEFT, 0, WIDTH - LEFT, 0, "cover");
    const line = cell(LEFT - 3, 0, WIDTH - LEFT + 3, high, "now");
    drawing.append(cover, line);
    this.marks.push((step) => {
      const to = step === null ? calls : Math.min(step, calls);
      cover.setAttribute("y", (to + 1) * high);
      cover.setAttribute("height", (calls - to) * high);
      line.setAttribute("y", to * high);
      line.classList.toggle("off", step === null);
    });
    return drawing;
  }

  /** The tokens in the order they are generated, blocks apart. */
  #sequence(plan) {
    const gap = 0.3;
    const across = Math.min(plan.n + gap * (plan.blocks.length - 1), ACROSS);
    const size = Math.min(WIDTH / across, 30);
    let [x, y] = [0, 0];
    const groups = plan.blocks.map((block) => {
      const group = shape("g");
      if (x > 0 && x + block.length > across + 0.01) [x, y] = [0, y + 1 + gap];
      for (const j of block) {
        if (x + 1 > across + 0.01) [x, y] = [0, y + 1]; // a block longer than a line
        const square = cell(x * size, y * size, size, size, plan.call[j] ? "edged" : "given edged");
        group.append(coloured(square, plan, j));
        if (plan.n <= LINES) label(group, (x + 0.5) * size, (y + 0.5) * size, j, size);
        x += 1;
      }
      x += gap;
      this.marks.push((step) => {
        const later = step !== null && plan.call[block[0]] > step;
        group.classList.toggle("later", later);
      });
      return group;
    });
    const drawing = picture((y + 1) * size, `Permuted sequence: ${words(plan.blocks)}`);
    drawing.append(...groups);
    return drawing;
  }

  /** M^sc: a row sees the columns of earlier blocks. The first column is BOS, which all see. */
  #mask(plan) {
    const { n, blocks } = plan;
    const size = (WIDTH - LEFT) / (n + 1);
    const drawing = picture(n * size + 20, `Strict mask: ${summary(plan)}`);
    const ground = [LEFT, 0, WIDTH - LEFT, n * size];
    drawing.append(cell(...ground, "masked"), cell(LEFT, 0, size, n * size, "bos"));
    const outlines = [];
    let first = 0;
    for (const block of blocks) {
      const past = first + block.length;
      const [x, wide] = [LEFT + (first + 1) * size, block.length * size];
      const seen = cell(x, past * size, wide, (n - past) * size, plan.call[block[0]] ? "" : "given");
      drawing.append(coloured(seen, plan, block[0]));
      const own = cell(x + 1.5, first * size + 1.5, wide - 3, wide - 3, "own");
      if (wide > 6) outlines.push(coloured(own, plan, block[0]));
      this.#band(drawing, plan.call[block[0]], first * size, wide);
      first = past;
    }
    edges(drawing, ground, n + 1, n);
    drawing.append(...outlines);
    const order = blocks.flat();
    for (let k = 0; k < n; k += every(size)) {
      const at = (k + 0.5) * size;
      drawing.append(text(LEFT - 6, at + 3, order[k], "tick end"));
      drawing.append(text(LEFT + size + at, n * size + 11, order[k], "tick"));
    }
    if (size > 18) drawing.append(text(LEFT + size / 2, n * size + 11, "BOS", "tick"));
    return drawing;
  }

  /** Marks the rows of a block while its call is the one shown. */
  #band(drawing, call, y, high) {
    if (!call) return;
    const band = cell(LEFT - 3, y, WIDTH - LEFT + 3, high, "now off");
    this.marks.push((step) => {
      band.classList.toggle("off", step !== call);
      if (step === call) drawing.append(band); // above all else
    });
  }
}

/** Blocks of positions, and the call that draws each position: 0 for what is given. */
function planned({ position, block }, known, pieces) {
  const blocks = [];
  position.forEach((j, k) => {
    if (k && block[k] === block[k - 1]) blocks.at(-1).push(j);
    else blocks.push([j]);
  });
  const call = [];
  let calls = 0;
  for (const part of blocks) {
    const given = part.every((j) => known[j]);
    if (!given) calls += 1;
    for (const j of part) call[j] = given ? 0 : calls;
  }
  return { n: position.length, blocks, call, calls, pieces };
}

const summary = ({ n, calls }) => `${count(n, "position")}, ${count(calls, "model call")}`;

const words = (blocks) =>
  blocks.slice(0, 40).map((block) => block.join(" ")).join(" | ") + (blocks.length > 40 ? " …" : "");

function figure(title, drawing, className) {
  return make("figure", className, make("figcaption", "", title), drawing);
}

function picture(height, title) {
  const options = { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title };
  return shape("svg", options);
}

function cell(x, y, width, height, className) {
  const size = { width: Math.max(0, width), height: Math.max(0, height) };
  return shape("rect", { x, y, ...size, class: className });
}

/** In the colour of the call that draws position j, with a word about it for the pointer. */
function coloured(rect, { call, calls, pieces }, j) {
  if (call[j]) tint(rect, call[j], calls);
  const piece = pieces[j] ? ` ${quoted(pieces[j])}` : "";
  const when = call[j] ? `model call ${call[j]}` : "given";
  rect.append(shape("title", {}, `position ${j}${piece}: ${when}`));
  return rect;
}

function edges(drawing, [x, y, width, height], columns, rows) {
  if (columns > LINES) return;
  for (let c = 1; c < columns; c++) {
    const at = x + (c * width) / columns;
    drawing.append(shape("line", { x1: at, x2: at, y1: y, y2: y + height, class: "edge" }));
  }
  for (let r = 1; r < rows && height / rows > 5; r++) {
    const at = y + (r * height) / rows;
    drawing.append(shape("line", { x1: x, x2: x + width, y1: at, y2: at, class: "edge" }));
  }
}

function text(x, y, words, className) {
  return shape("text", { x, y, class: className }, String(words));
}

function label(drawing, x, y, words, size) {
  if (size < 7) return;
  const font = Math.min(12, size * 0.55);
  drawing.append(
    shape("text", { x, y: y + font * 0.36, "font-size": font, class: "inside" }, String(words)),
  );
}

/** Every how manieth cell of this size has room for a number. */
const every = (size) => [1, 2, 4, 5, 8, 10, 16, 20].find((k) => k * size >= APART) ?? 32;
