"""Chat templates beside the event loop: one conversation at a time, in a thread of their own, so
that a slow template delays chats alone; and only some may wait."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ..data.chat_template import SECONDS, ChatTemplate
from ..errors import ArmdError
from .requests import QueueFull, ShuttingDown

MOST_WAITING = 16
"""Conversations; the next one is told to come back."""


class TemplateQueue:
    def __init__(self, chat: ChatTemplate) -> None:
        self.chat, self.waiting, self.closed = chat, 0, False
        self.thread = ThreadPoolExecutor(1, "armd-template")

    async def text(self, messages: Sequence[dict[str, str]]) -> str:
        """What the template makes of them."""
        if self.waiting >= MOST_WAITING:
            raise QueueFull(math.ceil(SECONDS * self.waiting / 2))
        self.waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.thread, self._render, messages)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """No more: what is being rendered ends at once."""
        self.closed = True
        self.chat.renderer.process.kill()

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        try:
            if not self.closed:
                return self.chat.text(messages)
        except ArmdError:
            if not self.closed:
                raise
        except OSError:  # no process can be started now, as for want of memory
            raise QueueFull(math.ceil(SECONDS)) from None
        raise ShuttingDown("the server is shutting down")
