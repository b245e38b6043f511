"""A conversation as the text a model was taught to answer: its tokenizer's own chat template."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import ArmdError


def chat_text(folder: Path, messages: Sequence[dict[str, str]]) -> str:
    """The messages (each a role and a content) up to where the answer begins. The model puts BOS
    before every text itself, so one that the template puts there is left out."""
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(str(folder))
    if not getattr(found, "chat_template", None):
        raise ArmdError(f"the tokenizer in {folder} has no chat template; leave out the chat")
    try:
        text = found.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates raise what they like
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArmdError(f"the chat template refuses these messages: {reason}") from None
    return str(text).removeprefix(str(found.bos_token or ""))
