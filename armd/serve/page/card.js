/** The card beside a token: its step, its probability, and what else might have stood there. */

import { make, percent, tint } from "./dom.js";
import { visible } from "./tokens.js";

export class Card {
  constructor(host) {
    this.host = host;
    this.of = null; // the token shown: [span, recording, position]
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
    document.addEventListener("scroll", () => this.hide(), { passive: true, capture: true });
  }

  /** Shows what is known of the token at `position` beside its span. */
  show(span, recording, position) {
    this.of?.[0].removeAttribute("aria-describedby");
    this.of = [span, recording, position];
    this.host.replaceChildren(...content(recording, position, span.classList.contains("blank")));
    this.host.hidden = false;
    span.setAttribute("aria-describedby", this.host.id);
    this.#place(span.getBoundingClientRect());
  }

  /** The same token again, after a step: it may have been drawn meanwhile. */
  refresh() {
    if (!this.of) return;
    if (this.of[0].isConnected) this.show(...this.of);
    else this.hide();
  }

  hide() {
    this.of?.[0].removeAttribute("aria-describedby");
    this.of = null;
    this.host.hidden = true;
  }

  /** Under the token, or above it where there is no room; never beyond the window's edges. */
  #place(token) {
    const { offsetWidth: width, offsetHeight: height } = this.host;
    const room = document.documentElement.clientWidth - width - 8;
    const left = Math.max(8, Math.min(token.left + token.width / 2 - width / 2, room));
    const below = token.bottom + 8;
    const top = below + height > window.innerHeight ? token.top - height - 8 : below;
    this.host.style.left = `${left}px`;
    this.host.style.top = `${Math.max(8, top)}px`;
  }
}

function content(recording, position, blank) {
  const place = recording.places[position];
  const head = make("p", "head");
  if (blank) {
    head.append(make("b", "", "blank"), make("span", "", `position ${position}`));
    return [head];
  }
  head.append(make("b", "", visible(place.piece)));
  if (place.given) {
    head.append(make("span", "", `given, position ${position}`));
    return [head];
  }
  head.append(make("span", "", `step ${place.step} of ${recording.total}, position ${position}`));
  const parts = [head, bars(place, recording.total)];
  if (recording.dropped(position)) parts.push(make("p", "", "behind the end of the text: dropped"));
  return parts;
}

/** The token drawn and its rivals, the most probable first. */
function bars(place, total) {
  const rivals = (place.rivals ?? []).filter((rival) => rival.token !== place.token);
  const all = [place, ...rivals].sort((a, b) => b.logprob - a.logprob);
  const list = make("ul", "bars");
  for (const one of all) {
    const row = make("li", one === place ? "chosen" : "");
    const bar = make("i", "bar");
    bar.style.setProperty("--share", Math.exp(one.logprob));
    if (one === place) tint(bar, place.step, total);
    row.append(make("span", "piece", visible(one.piece)), bar);
    row.append(make("span", "share", percent(one.logprob)));
    list.append(row);
  }
  return list;
}
