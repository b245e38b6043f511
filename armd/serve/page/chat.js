/** The chat: messages in turn, for models that were taught to answer them. */

import { events } from "./api.js";
import { find, make } from "./dom.js";

export class Chat {
  /** `begin` and `finish` hold the machine, as for the other views; `options()` are the form's. */
  constructor({ begin, finish, options }) {
    Object.assign(this, { begin, finish, options });
    this.messages = [];
    find("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    find("chat-clear").addEventListener("click", () => this.clear());
    find("chat-box").addEventListener("input", () => this.#ready());
    find("chat-box").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      event.stopPropagation(); // with Ctrl, too: once is enough
      this.send();
    });
    this.#ready();
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    find("chat-log").replaceChildren();
  }

  /** Sends what was typed, and shows the answer as it comes. */
  async send() {
    const content = find("chat-box").value.trim();
    if (!content) return;
    const controller = this.begin(); // an answer that is coming ends where it is
    this.running = controller;
    const reply = { role: "assistant", content: "" };
    const messages = [...this.messages, { role: "user", content }];
    this.messages = [...messages, reply]; // in its place, whatever is sent or cleared meanwhile
    this.#show("user", content);
    find("chat-box").value = "";
    this.#ready();
    const shown = this.#show("assistant", "");
    const body = { messages, ...this.options(), stream: true };
    let error = null;
    try {
      for await (const chunk of events("v1/chat/completions", body, controller)) {
        shown.append(chunk.choices[0]?.delta.content ?? "");
        reply.content = shown.textContent;
        find("chat-log").scrollTop = find("chat-log").scrollHeight;
      }
    } catch (failure) {
      error = failure;
    }
    this.finish(controller, error);
    if (error && error.name !== "AbortError" && !reply.content) this.#takeBack(reply, content);
    find("said").textContent = shown.textContent;
  }

  /** A message that was refused or did not arrive is no part of the conversation: it can be changed
   * and sent again. */
  #takeBack(reply, content) {
    if (this.messages.at(-1) !== reply) return;
    this.messages = this.messages.slice(0, -2);
    for (let line = 0; line < 2; line += 1) find("chat-log").lastElementChild?.remove();
    if (!find("chat-box").value) find("chat-box").value = content;
    this.#ready();
  }

  #show(role, content) {
    const text = make("p", "", content);
    find("chat-log").append(make("li", role, make("b", "", role), text));
    return text;
  }

  #ready() {
    find("chat-send").disabled = !find("chat-box").value.trim();
  }
}
