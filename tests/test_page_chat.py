"""Law: the page sends the conversation as it shows it, whatever is typed or cleared while an answer
comes. The page's own script, run by node with a stand-in for the browser."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node to run scripts with")

import armd.serve  # noqa: E402

PAGE = Path(armd.serve.__file__).parent / "page"
BROWSER = """
const elements = {}, asked = [], waiting = [];
const element = () => ({
  value: "", textContent: "", handlers: {}, dataset: {}, classList: { add() {} },
  append(...more) { for (const one of more) this.textContent += one.textContent ?? one; },
  replaceChildren() { this.textContent = ""; },
  lastElementChild: { remove() {} },
  addEventListener(name, does) { this.handlers[name] = does; },
});
globalThis.document = {
  getElementById: (id) => (elements[id] ??= element()), createElement: element,
};
globalThis.fetch = async (_, { body, signal }) => {
  asked.push(JSON.parse(body).messages);
  if (refusing) return { ok: false, status: 429, headers: new Map(), json: async () => ({}) };
  const bytes = new TextEncoder();
  const stream = new ReadableStream({ start(answer) {
    signal.addEventListener("abort", () => answer.error(new DOMException("", "AbortError")));
    const says = (text) => answer.enqueue(bytes.encode(
      `data: {"choices":[{"delta":{"content":"${text}"}}]}\\n\\n`));
    const ends = () => { answer.enqueue(bytes.encode("data: [DONE]\\n\\n")); answer.close(); };
    waiting.push({ says, ends });
  } });
  return { ok: true, status: 200, body: stream, headers: new Map() };
};
let running = null, refusing = false;
const { Chat } = await import(process.argv[2] + "/chat.js");
const chat = new Chat({
  begin() { running?.abort(); return (running = new AbortController()); },
  finish() {}, options: () => ({}),
});
const rest = () => new Promise((done) => setTimeout(done, 30));
const send = async (text) => {
  document.getElementById("chat-box").value = text;
  chat.send();
  await rest();
};
"""
STEPS = """
await send("a"); waiting[0].says("A"); await rest();
await send("b"); waiting[1].says("B"); waiting[1].ends(); await rest();
await send("c"); waiting[2].says("C"); await rest();
chat.clear(); await rest();
await send("d"); waiting[3].says("D"); waiting[3].ends(); await rest();
await send("e");
console.log(JSON.stringify(asked.map((all) => all.map((one) => one.content).join(""))));
process.exit(0);
"""

REFUSED = """
await send("a"); waiting[0].says("A"); waiting[0].ends(); await rest();
refusing = true; await send("far too long");
const back = document.getElementById("chat-box").value;
refusing = false; await send("b");
console.log(JSON.stringify([...asked.map((all) => all.map((one) => one.content).join("")), back]));
process.exit(0);
"""


def sent(steps: str, tmp_path: Path) -> list[str]:
    script = tmp_path / "chat.mjs"
    script.write_text(BROWSER + steps)
    folder = shutil.copytree(PAGE, tmp_path / "page")
    (folder / "package.json").write_text('{"type": "module"}')
    command = ["node", str(script), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_messages_are_sent_in_the_order_in_which_they_are_shown(tmp_path: Path) -> None:
    assert sent(STEPS, tmp_path) == ["a", "aAb", "aAbBc", "d", "dDe"]


def test_a_message_that_was_refused_is_no_part_of_the_conversation(tmp_path: Path) -> None:
    """It is in the box again, to be changed."""
    assert sent(REFUSED, tmp_path) == ["a", "aAfar too long", "aAb", "far too long"]
