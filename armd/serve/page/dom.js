/** Building the page's elements. Text goes in as text, never as markup: a model may write anything. */

const SVG = "http://www.w3.org/2000/svg";

/** The element of that id. */
export const find = (id) => document.getElementById(id);

/** A new element: `make("li", "blank", "one")`; children may be elements or strings. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children); // strings become text nodes
  return element;
}

/** A new SVG element with these attributes; `text` becomes its text. */
export function shape(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

/** A button that is no submit button. */
export function button(className, text, label, onClick) {
  const element = make("button", className, text);
  element.type = "button";
  element.setAttribute("aria-label", label);
  element.addEventListener("click", onClick);
  return element;
}

/** Colours an element by its step: the style sheet's ramp runs over --t from 0 to 1. */
export function tint(element, step, total) {
  element.classList.add("step");
  element.style.setProperty("--t", total > 1 ? (step - 1) / (total - 1) : 0);
}

/** "1 token", "2 tokens". */
export const count = (n, thing) => `${n.toLocaleString("en")} ${thing}${n === 1 ? "" : "s"}`;

/** A probability as people read it: 42 %, 0.3 %, < 0.1 %. */
export function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  if (value < 0.1) return "< 0.1 %";
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Whether the reader asked for less motion. */
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
