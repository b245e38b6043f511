/** The form in the page's address: it survives a reload, and a link carries it to others. The part
 * behind # is never sent to a server. */

import { find } from "./dom.js";

const MOST = 1 << 20; // tokens: an address may come from anybody
const FIELDS = ["streams", "temperature", "top-p", "order-of", "seed"];

/** Writes the form into the address, without a step in the browser's history. */
export function save({ text, lengths, after }) {
  const fields = FIELDS.map((id) => [id, find(id).value]);
  const all = [["text", text], ["blanks", lengths.join(" ")], ["length", after], ...fields];
  history.replaceState(null, "", `#${new URLSearchParams(all)}`);
}

/** What the address says of the form, with its sliders set; null if it says nothing. */
export function restore() {
  const said = new URLSearchParams(location.hash.slice(1));
  if (!said.has("text")) return null;
  for (const id of FIELDS) {
    if (said.has(id)) find(id).value = said.get(id);
  }
  const possible = (n) => Number.isInteger(n) && n >= 1 && n <= MOST;
  const lengths = (said.get("blanks") ?? "").split(" ").map(Number).filter(possible);
  const after = Math.min(MOST, Math.max(0, Number(said.get("length")) || 0));
  return { text: said.get("text"), lengths, after };
}
