/** The page: what happens when the reader types, moves a slider, presses a button. */

import { ask, events } from "./api.js";
import { Card } from "./card.js";
import { Chat } from "./chat.js";
import { calm, count, find } from "./dom.js";
import { OrderView } from "./order-view.js";
import { Player } from "./player.js";
import { Prompt } from "./prompt.js";
import { Race } from "./race.js";
import { Recording } from "./recording.js";
import { restore, save } from "./saved.js";
import { Settings } from "./settings.js";
import { TextView } from "./tokens.js";

const LEAST_RACE = 10; // tokens, below which a race measures little but the clock
const RIVALS = 5; // how many alternatives the card of a token shows
const STARTS = ["generate", "race-start", "chat-send"];
const STOPS = ["stop", "race-stop", "chat-stop"];
const VIEWS = ["watch", "race", "chat"];
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
const view = new TextView(find("canvas"), card);
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
    view.show(step);
    orderView.record(recording, step);
  },
);
const race = new Race({ card, request, begin, finish });
new Chat({
  begin,
  finish,
  options: () => {
    const tokens = settings.length || 64;
    return { ...settings.sampling, max_tokens: tokens, streams: settings.streamsFor(tokens) };
  },
});

let info = { max_length: 128, any_order: true };
let recording = null; // what is shown
let running = null; // the AbortController of the request under way
let begun = 0; // requests so far
let met = false; // the server has said what it can do
let refused = { generate: "", race: "" }; // why they cannot work now
let typing = 0; // the timer that waits for a pause in typing

/** What the form asks for, as events. With `streams`, those and nothing else: a side of a race. */
async function request({ streams, signal }) {
  const { tokens, known } = await prompt.tokens(settings.length, { signal });
  const blanks = known.filter((given) => !given).length;
  const reasons = whyNot(known.length, blanks);
  const reason = streams ? reasons.race : reasons.generate;
  if (reason) throw new Error(reason);
  const racing = streams && { order: "strided", streams: Math.min(streams, blanks) };
  const order = racing || settings.orderOf(blanks);
  // a prompt may end early, at an end of text; blanks are all filled, and so is either side of a
  // race: the two write equally many tokens
  const whole = racing || prompt.lengths.length;
  const text = whole ? { tokens, known } : { prompt: prompt.text, max_tokens: blanks };
  text.model = info.model; // whose tokens these are: the server may have another one by now
  const body = { ...text, ...order, ...settings.sampling, rivals: RIVALS, stream: true };
  return events("v1/infill", body, { signal });
}

/** Why this form cannot be generated from, or raced with; "" where it can. */
function whyNot(tokens, blanks) {
  let generate = "";
  if (!blanks) generate = "There is nothing to write: mark a blank, or raise Length.";
  if (tokens > info.max_length) {
    generate = `${tokens} tokens are too many: this model takes ${info.max_length}. Lower Length.`;
  }
  if (!info.any_order && prompt.lengths.length) {
    generate = "This model writes left to right: it continues a text, and fills no blanks.";
  }
  const short = `A race needs at least ${LEAST_RACE} tokens to write; raise Length.`;
  let race = blanks < LEAST_RACE ? short : "";
  if (!info.any_order) race = "This model writes one token a call: there is nothing to race.";
  return { generate, race: generate || race };
}

/** Buttons that cannot work are off, and say why. */
function allow(reasons) {
  refused = reasons;
  find("generate").disabled = Boolean(reasons.generate);
  find("race-start").disabled = Boolean(reasons.race);
  find("why").textContent = reasons.generate;
  find("race-why").textContent = reasons.generate ? "" : reasons.race;
}

/** One request at a time: stops the one under way, says how to stop this one. */
function begin() {
  running?.abort();
  running = new AbortController();
  begun += 1;
  complain("");
  for (const id of STOPS) find(id).hidden = false;
  for (const id of STARTS) find(id).hidden = true;
  return running;
}

/** The request that `controller` stands for is over; `error` says why, if it failed. */
function finish(controller, error) {
  if (error && error.name !== "AbortError") complain(error.message);
  if (running !== controller) return; // another one has begun
  running = null;
  for (const id of STOPS) find(id).hidden = true;
  for (const id of STARTS) find(id).hidden = false;
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
    recording = mine; // a request that fails before this leaves the last text as it was
    find("copy").disabled = true;
    view.open(mine);
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
  const how = { time: "Cut, its time was up", shutdown: "Cut, the server stops" }[end.cut] ?? "Done";
  if (end.cut) find("facts").textContent = `${how} · ${find("facts").textContent}`;
  find("said").textContent = `${how}: ${did.join(" in ")}, ${speed}. ${end.text}`;
}

/** On a narrow screen the text is below the form. */
function comeIntoView() {
  const { top } = find("stage").getBoundingClientRect();
  if (top < window.innerHeight * 0.6 && top > -80) return;
  find("stage").scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
}

/** Counts tokens and draws the order to come, once the reader pauses. */
function formChanged() {
  settings.hasBlanks(prompt.lengths.length > 0);
  if (met) save({ text: prompt.text, lengths: prompt.lengths, after: settings.length });
  clearTimeout(typing);
  typing = setTimeout(measure, 150, begun);
}

/** `before`: how many requests had begun when the form was changed; a later one is drawn instead. */
async function measure(before) {
  try {
    const { known } = await prompt.tokens(settings.length);
    const given = known.filter(Boolean).length;
    const blanks = known.length - given;
    const over = known.length > info.max_length;
    allow(whyNot(known.length, blanks));
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

/** Shows the text ("watch"), the race or the chat. */
function select(name) {
  for (const one of VIEWS) {
    find(one).hidden = one !== name;
    find(`tab-${one}`).setAttribute("aria-selected", one === name);
    find(`tab-${one}`).tabIndex = one === name ? 0 : -1;
  }
  find("facts").hidden = name !== "watch";
}

function tabs() {
  for (const one of VIEWS) {
    find(`tab-${one}`).addEventListener("click", () => select(one));
    find(`tab-${one}`).addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      const shown = VIEWS.filter((view) => !find(`tab-${view}`).hidden);
      const other = shown[(shown.indexOf(one) + by + shown.length) % shown.length];
      select(other);
      find(`tab-${other}`).focus();
    });
  }
}

function buttons() {
  find("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    start("generate", generate);
  });
  for (const id of STOPS) find(id).addEventListener("click", () => running?.abort());
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
    if (!find("race").hidden) start("race", () => race.start());
    else start("generate", generate);
  });
}

/** By a key as by a button: not where the button is off. */
function start(name, run) {
  if (refused[name]) complain(refused[name]);
  else run();
}

function example(name) {
  const { text, lengths, after } = EXAMPLES[name];
  prompt.set(text, lengths);
  settings.length = after;
}

async function meet() {
  try {
    info = await ask("v1/info");
    const { any_order: anyOrder, limits, max_length: length } = info;
    settings.limit({ streams: limits.max_streams, length, anyOrder });
    document.querySelector('[data-example="blanks"]').disabled = !anyOrder;
    prompt.longest = info.max_length;
    const millions = (info.parameters / 1e6).toFixed(1);
    const layers = `${info.n_layers} layers, ${info.n_two_stream} of them two-stream`;
    const facts = [`${millions} M weights`, layers, `up to ${info.max_length} tokens`];
    find("model").replaceChildren(bold(info.model), facts.join(" · "));
    find("tab-chat").hidden = !info.chat;
  } catch (error) {
    find("model").textContent = "";
    complain(error.message);
  }
  const said = restore();
  if (said) {
    settings.refresh();
    prompt.set(said.text, said.lengths);
    settings.length = said.after;
  } else {
    example(info.any_order ? "blanks" : "continue");
  }
  met = true;
  formChanged();
}

function bold(text) {
  const element = document.createElement("b");
  element.textContent = text;
  return element;
}

tabs();
buttons();
view.empty(
  "A stream is one of several places of the text where the model writes at the same time: with 4 " +
    "streams each call of the model draws 4 tokens. Mark a blank or two, press Generate, and " +
    "watch: each token takes the " +
    "colour of the step that draws it. Point at one, or go there with the arrow keys, to see " +
    "what else might have stood there.",
);
meet();
