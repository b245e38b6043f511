/** The page: what happens when the reader types, moves a slider, presses a button. */

import { ask, events } from "./api.js";
import { Card } from "./card.js";
import { calm, count, find } from "./dom.js";
import { OrderView } from "./order-view.js";
import { Player } from "./player.js";
import { Prompt } from "./prompt.js";
import { Race } from "./race.js";
import { Recording } from "./recording.js";
import { Settings } from "./settings.js";
import { Canvas } from "./tokens.js";

const RIVALS = 5; // how many alternatives the card of a token shows
const EXAMPLES = {
  continue: { text: "The people of the United States", lengths: [], after: 48 },
  blanks: {
    text: "The ____ of the United States ____ peace with all nations, and ____.",
    lengths: [2, 4, 6],
    after: 0,
  },
  nothing: { text: "", lengths: [], after: 64 },
};

const card = new Card(find("card"));
const canvas = new Canvas(find("canvas"), card);
const settings = new Settings(() => formChanged());
const orderView = new OrderView(settings);
const prompt = new Prompt(
  { box: find("prompt"), mirror: find("mirror"), list: find("blanks"), mark: find("mark") },
  () => formChanged(),
);
const player = new Player(
  {
    play: find("play"),
    scrubber: find("scrubber"),
    step: find("step"),
    pace: find("pace"),
  },
  (step) => {
    canvas.show(step);
    orderView.record(recording, step);
  },
);
const race = new Race({ card, request, begin, finish });

let info = { max_length: 128 };
let recording = null; // what the canvas shows
let running = null; // the AbortController of the request under way
let begun = 0; // requests so far
let typing = 0; // the timer that waits for a pause in typing

/** What the form asks for, as events. With `streams`, those and nothing else: a side of a race. */
async function request({ streams, signal }) {
  const { tokens, known } = await prompt.canvas(settings.length, { signal });
  const blanks = known.filter((given) => !given).length;
  if (!blanks) throw new Error("There is nothing to write: mark a blank, or raise Length.");
  const racing = streams && { order: "strided", streams: Math.min(streams, blanks) };
  const order = racing || settings.orderOf(blanks);
  // a prompt may end early, at an end of text; blanks are all filled, and so is either side of a
  // race: the two write equally many tokens
  const whole = racing || prompt.lengths.length;
  const text = whole ? { tokens, known } : { prompt: prompt.text, max_tokens: blanks };
  const body = { ...text, ...order, ...settings.sampling, rivals: RIVALS, stream: true };
  return events("v1/infill", body, { signal });
}

/** One request at a time: stops the one under way, says how to stop this one. */
function begin() {
  running?.abort();
  running = new AbortController();
  begun += 1;
  complain("");
  for (const id of ["stop", "race-stop"]) find(id).hidden = false;
  for (const id of ["generate", "race-start"]) find(id).hidden = true;
  return running;
}

/** The request that `controller` stands for is over; `error` says why, if it failed. */
function finish(controller, error) {
  if (error && error.name !== "AbortError") complain(error.message);
  if (running !== controller) return; // another one has begun
  running = null;
  for (const id of ["stop", "race-stop"]) find(id).hidden = true;
  for (const id of ["generate", "race-start"]) find(id).hidden = false;
}

function complain(message) {
  find("error").textContent = message;
}

async function generate() {
  select("watch");
  const controller = begin();
  const mine = new Recording();
  find("facts").textContent = "asking…";
  comeIntoView();
  let error = null;
  try {
    for await (const event of await request({ signal: controller.signal })) {
      if (running !== controller) return; // another request has begun
      take(mine, event);
    }
  } catch (failure) {
    error = failure;
  }
  if (running === controller) conclude(mine, error);
  finish(controller, error);
}

/** One event of what is being written. */
function take(mine, event) {
  mine.add(event);
  if (event.type === "start") {
    recording = mine; // a request that fails before this leaves the last canvas as it was
    find("copy").disabled = true;
    canvas.open(mine);
    player.open(mine);
    find("said").textContent = `Writing ${count(mine.blanks, "token")}.`;
  } else {
    player.follow();
  }
  const written = mine.written(mine.steps.length);
  find("facts").textContent = `${written} of ${count(mine.blanks, "token")}`;
}

/** What is said when it is over, one way or the other. */
function conclude({ start, steps, end, ...mine }, error) {
  if (!end) {
    const why = error?.name === "AbortError" ? "stopped" : "broken off";
    const after = start ? `${why} after ${count(steps.length, "step")}` : "";
    find("said").textContent = find("facts").textContent = after;
    return;
  }
  find("copy").disabled = false;
  const speed = `${end.tokens_per_second.toFixed(0)} tokens/s`;
  const written = mine.places.filter(({ step }) => step !== null).length;
  const did = [count(written, "token"), count(end.calls, "model call")];
  find("facts").textContent = [...did, `${end.seconds.toFixed(2)} s`, speed].join(" · ");
  find("said").textContent = `Done: ${did.join(" in ")}, ${speed}. ${end.text}`;
}

/** On a narrow screen the canvas is below the form. */
function comeIntoView() {
  const { top } = find("stage").getBoundingClientRect();
  if (top < window.innerHeight * 0.6 && top > -80) return;
  find("stage").scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
}

/** Counts tokens and draws the order to come, once the reader pauses. */
function formChanged() {
  settings.hasBlanks(prompt.lengths.length > 0);
  clearTimeout(typing);
  typing = setTimeout(measure, 150, begun);
}

/** `before`: how many requests had begun when the form was changed; a later one is drawn instead. */
async function measure(before) {
  try {
    const { known } = await prompt.canvas(settings.length);
    const given = known.filter(Boolean).length;
    const blanks = known.length - given;
    const over = known.length > info.max_length;
    const sum = `${given} given + ${blanks} to write`;
    const calls = count(settings.callsFor(blanks), "model call");
    const after = over ? `: ${known.length} of at most ${info.max_length}` : ` in ${calls}`;
    find("count").textContent = `${sum}${blanks || over ? after : ""}`;
    find("count").classList.toggle("over", over);
    if (!running && begun === before && !over) orderView.preview(known);
  } catch (error) {
    complain(error.message);
  }
}

/** Shows the canvas ("watch") or the race. */
function select(name) {
  for (const one of ["watch", "race"]) {
    find(one).hidden = one !== name;
    find(`tab-${one}`).setAttribute("aria-selected", one === name);
    find(`tab-${one}`).tabIndex = one === name ? 0 : -1;
  }
  find("facts").hidden = name !== "watch";
}

function tabs() {
  for (const one of ["watch", "race"]) {
    find(`tab-${one}`).addEventListener("click", () => select(one));
    find(`tab-${one}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = one === "watch" ? "race" : "watch";
      select(other);
      find(`tab-${other}`).focus();
    });
  }
}

function buttons() {
  find("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  for (const id of ["stop", "race-stop"]) find(id).addEventListener("click", () => running?.abort());
  find("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText(recording.end.text).catch(() => {});
    find("said").textContent = "Copied.";
  });
  for (const link of document.querySelectorAll("[data-example]")) {
    link.addEventListener("click", () => example(link.dataset.example));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (find("race").hidden) generate();
    else race.start();
  });
}

function example(name) {
  const { text, lengths, after } = EXAMPLES[name];
  prompt.set(text, lengths);
  settings.length = after;
}

async function meet() {
  try {
    info = await ask("v1/info");
    settings.limit({ streams: info.limits.max_streams, length: info.max_length });
    prompt.longest = info.max_length;
    const millions = (info.parameters / 1e6).toFixed(1);
    const layers = `${info.n_layers} layers, ${info.n_two_stream} of them two-stream`;
    const facts = [`${millions} M weights`, layers, `up to ${info.max_length} tokens`];
    find("model").replaceChildren(bold(info.model), facts.join(" · "));
  } catch (error) {
    find("model").textContent = "";
    complain(error.message);
  }
  example("blanks");
}

function bold(text) {
  const element = document.createElement("b");
  element.textContent = text;
  return element;
}

tabs();
buttons();
canvas.empty(
  "Nothing written yet. Mark a blank or two, press Generate, and watch: each token takes the " +
    "colour of the step that draws it. Point at one, or go there with the arrow keys, to see " +
    "what else might have stood there.",
);
meet();
