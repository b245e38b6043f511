"""A conversation as the text a model was taught to answer: its tokenizer's own chat template."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ArmdError, first_line
from ..runtime.foreign_code import no_foreign_code
from . import template_process
from .tokenizer_files import check_tokenizer_files

SECONDS = 2.0
"""Of a core, that a template may take for one conversation."""


class ChatTemplate:
    """The chat template of a tokenizer's folder; raises where there is none."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        check_tokenizer_files(folder)
        try:
            with no_foreign_code(folder):
                tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        except Exception as error:  # such as of vocabulary files alone, which are read here
            reason = first_line(error)
            raise ArmdError(
                f"transformers, which has chat templates, cannot read {folder} ({reason}); leave "
                "out the chat, or put a tokenizer.json there"
            ) from None
        if not getattr(tokenizer, "chat_template", None):
            raise ArmdError(f"the tokenizer in {folder} has no chat template; leave out the chat")
        self.take(tokenizer)

    def take(self, tokenizer: Any) -> None:
        """Use the template of a tokenizer of transformers."""
        try:
            template = tokenizer.get_chat_template()
        except ValueError as error:  # several, and none of them is the usual one
            reason = str(error).splitlines()[0]
            raise ArmdError(f"no chat template can be chosen ({reason}); keep one") from None
        special = tokenizer.special_tokens_map  # as apply_chat_template gives them to it
        self.given = {**special, "chat_template": template, "add_generation_prompt": True}
        self.bos, self.renderer = str(tokenizer.bos_token or ""), Renderer()

    @classmethod
    def find(cls, folder: Path) -> ChatTemplate | None:
        """The template, if the folder has one."""
        try:
            return cls(folder)
        except ArmdError:
            return None

    def text(self, messages: Sequence[dict[str, str]]) -> str:
        """The messages (each a role and a content) up to where the answer begins. The model puts
        BOS before every text itself, so one that the template puts there is left out."""
        answer = self.renderer.ask({**self.given, "conversations": [list(messages)]})
        if "text" not in answer:
            raise ArmdError(f"the chat template refuses these messages: {answer['error']}")
        try:
            answer["text"].encode("utf-8")
        except UnicodeEncodeError:
            raise ArmdError("the chat template writes halves of letters; mend it") from None
        return answer["text"].removeprefix(self.bos)


class Renderer:
    """The process that renders templates (template_process.py): started at once, because it takes a
    second, and started again if a template was its end."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.lock, self.seconds, self.asked = threading.Lock(), seconds, False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        # -P: the files beside it are no modules; a session of its own: Ctrl-C is for us
        process = subprocess.Popen(
            [sys.executable, "-P", template_process.__file__, str(self.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
            start_new_session=True,
        )
        self.end = weakref.finalize(self, _end, process)
        return process

    def ask(self, given: dict[str, Any]) -> dict[str, str]:
        """One question and its answer. A process that has ended before is no fault of the
        question, which another one is asked."""
        line = json.dumps(given, default=str)
        with self.lock:
            if self.asked:  # an interrupt came, and the answer would be taken for the next one's
                self._start_again()
            for _ in range(2):
                self.asked = True
                taken, answer = self._exchange(line)
                if answer.endswith("\n"):
                    self.asked = False
                    return json.loads(answer)
                self._start_again()
                if taken:
                    break
        return {"error": "it takes too much time or memory"}

    def _start_again(self) -> None:
        self.end()
        self.process = self._start()
        self.asked = False

    def _exchange(self, line: str) -> tuple[bool, str]:
        """Whether the process took the line, and what it answered."""
        pipes = self.process
        assert pipes.stdin is not None and pipes.stdout is not None
        try:
            print(line, file=pipes.stdin, flush=True)
        except (OSError, ValueError):  # it is not there any more, or could not be started
            return False, ""
        return True, pipes.stdout.readline()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(OSError), process:  # what it did not take cannot be flushed
        pass
