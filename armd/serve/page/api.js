/** Talking to the server: one question, or a stream of events. */

/** What the server, or the way to it, has to complain about; `message` is one line for the reader. */
export class ServerError extends Error {}

/** GET without a body, POST with one; the answer's JSON. */
export async function ask(path, body, { signal } = {}) {
  return (await send(path, body, signal)).json();
}

/** The events of a streamed answer, one object after another, as they arrive, up to its "end". */
export async function* events(path, body, { signal } = {}) {
  const answer = await send(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) throw new ServerError("The server broke off in the middle.");
      pending = (pending + value).replaceAll("\r\n", "\n");
      const whole = pending.split("\n\n");
      pending = whole.pop(); // what is not yet complete
      for (const block of whole) {
        signal?.throwIfAborted(); // what came before the reader stopped, but was not shown
        const event = parse(block);
        if (event === DONE) return;
        if (event) yield event;
        if (event?.type === "end") return;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // an unread rest would keep the place at the server
  }
}

const DONE = Symbol("the closing [DONE]");

/** One server-sent event as an object; null for comments. */
function parse(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
  if (!data || data === "[DONE]") return data ? DONE : null;
  const event = JSON.parse(data);
  if (event.type === "error") throw new ServerError(event.error.message);
  return event;
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw unreachable(error);
  }
}

async function send(path, body, signal) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" } };
  const options = body === undefined ? {} : { ...post, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, { ...options, signal });
  } catch (error) {
    throw unreachable(error);
  }
  if (!answer.ok) throw new ServerError(await complaint(answer));
  return answer;
}

/** An abort is the reader's own wish and stays what it is; all else is a lost server. */
function unreachable(error) {
  if (error.name === "AbortError") return error;
  return new ServerError("The server does not answer. Is armd serve still running?");
}

async function complaint(answer) {
  let message = `The server answered ${answer.status}.`;
  try {
    const { error } = await answer.json();
    message = error.message ?? message;
    if (error.code === "model_not_found") message += ". Reload this page; its text stays.";
  } catch {
    // no JSON: the status has to do
  }
  const wait = answer.headers.get("Retry-After");
  return answer.status === 429 && wait ? `${message} Try again in ${wait} s.` : message;
}
