"""Laws: a chat template writes what transformers writes with it, and one that does not end, or asks
for all memory, ends in one line; the next conversation is answered."""

import json
from pathlib import Path

import pytest
from serving import tokenizer
from transformers import PreTrainedTokenizerFast

from armd.data.chat_template import ChatTemplate, Renderer
from armd.data.tokenizer import byte_symbols, from_folder
from armd.errors import ArmdError

PLAIN = (
    "{{ bos_token }}{% for m in messages %}{% if loop.first and m.role != 'system' %}[none]"
    "{% endif %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }} {{ messages | tojson }}{% if add_generation_prompt %}<assistant>{% endif %}"
)
MESSAGES = [{"role": "user", "content": "  hé\n{{ 7 }} "}, {"role": "x", "content": ""}]
HOSTILE = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{{ 7 ** 77777777 ** 2 }}",
    "memory": "{{ 'a' * 10000000000 }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "indent": "{{ messages | tojson(indent=999999999) }}",
    "long": "{{ 'a' * 9000000 }}",
    "itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "halves": "{{ '\\ud800' }}",
    "raises": "{{ raise_exception('no\nsuch role') }}",
    "syntax": "{% for %}",
}


def made(template: str) -> PreTrainedTokenizerFast:
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend, bos_token="<s>")
    found.chat_template = template
    return found


@pytest.fixture(scope="module")
def chat() -> ChatTemplate:
    found = object.__new__(ChatTemplate)
    found.take(made(PLAIN))
    found.renderer = Renderer(seconds=0.5)
    return found


def test_it_writes_what_transformers_writes(chat: ChatTemplate) -> None:
    options = {"tokenize": False, "add_generation_prompt": True}
    expected = made(PLAIN).apply_chat_template(MESSAGES, **options)
    assert expected.startswith("<s>")  # the model puts it there itself
    assert chat.text(MESSAGES) == expected.removeprefix("<s>")


def test_no_template_keeps_us_or_takes_all_memory(
    chat: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = chat.text(MESSAGES)
    for name, template in HOSTILE.items():
        with monkeypatch.context() as patch:
            patch.setitem(chat.given, "chat_template", template)
            with pytest.raises(ArmdError) as refused:
                chat.text(MESSAGES)
        assert "\n" not in str(refused.value), name
    assert chat.text(MESSAGES) == whole


def test_a_tokenizer_that_transformers_does_not_read_has_no_template(tmp_path: Path) -> None:
    """Vocabulary files alone are read here."""
    letters = {letter: number for number, letter in enumerate([*byte_symbols(), "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert from_folder(tmp_path).backend.encode("ab").ids
    assert ChatTemplate.find(tmp_path) is None
    with pytest.raises(ArmdError, match="leave out the chat"):
        ChatTemplate(tmp_path)


def test_a_process_that_ended_meanwhile_is_started_again(chat: ChatTemplate) -> None:
    """Such as by the system, for want of memory: the next conversation knows nothing of it."""
    whole = chat.text(MESSAGES)
    for _ in range(2):
        chat.renderer.process.kill()
        chat.renderer.process.wait()
        assert chat.text(MESSAGES) == whole


def test_an_interrupted_question_leaves_no_answer_behind(
    chat: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the next one would take for its own."""
    asked = [[{"role": "user", "content": text}] for text in ("first", "second", "third")]
    wanted = [chat.text(messages) for messages in asked]

    def interrupted(self: Renderer, line: str) -> None:
        print(line, file=self.process.stdin, flush=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Renderer, "_exchange", interrupted)
        chat.text(asked[0])
    assert [chat.text(messages) for messages in asked[1:]] == wanted[1:]


def test_one_that_could_not_be_started_is_started_the_next_time(
    chat: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = chat.text(MESSAGES)
    chat.renderer.process.kill()
    chat.renderer.process.wait()
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", lambda *_, **__: (_ for _ in ()).throw(OSError(12, "")))
        for _ in range(2):
            with pytest.raises(OSError):
                chat.text(MESSAGES)
    assert chat.text(MESSAGES) == whole
