"""A conversation as the text a model was taught to answer: its tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ArmdError


class ChatTemplate:
    """The chat template of a tokenizer's folder; raises where there is none."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if not getattr(self.tokenizer, "chat_template", None):
            raise ArmdError(f"the tokenizer in {folder} has no chat template; leave out the chat")

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
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates raise what they like
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ArmdError(f"the chat template refuses these messages: {reason}") from None
        return str(text).removeprefix(str(self.tokenizer.bos_token or ""))


def chat_text(folder: Path, messages: Sequence[dict[str, str]]) -> str:
    """The text of one conversation."""
    return ChatTemplate(folder).text(messages)
