"""Chat templates beside the event loop: one conversation at a time, in a thread of their own, so
that a slow template delays chats alone: only so many wait as keep their places in the queue for a
short time."""

import asyncio
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..data.chat_template import SECONDS, ChatTemplate
from ..errors import ArmdError
from .requests import QueueFull, ShuttingDown

FEW = 16
"""Conversations that may wait, however slow the template is; the next one is told to come back."""
WAIT_SECONDS = 2.0
"""More may wait if all of them are rendered within this time, as fast as the last one was."""


class TemplateQueue:
    def __init__(self, chat: ChatTemplate) -> None:
        self.chat, self.waiting, self.closed = chat, 0, False
        self.seconds = SECONDS
        """That the last conversation took; before the first, the most that one may take."""
        self.thread = ThreadPoolExecutor(1, "armd-template")

    async def text(self, messages: Sequence[dict[str, str]]) -> str:
        """What the template makes of them."""
        if self.waiting >= max(FEW, WAIT_SECONDS / self.seconds):
            raise QueueFull(math.ceil(self.seconds * self.waiting))
        self.waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.thread, self._render, messages)
        finally:
            self.waiting -= 1

    def warm_up(self) -> None:
        """Start the template's process, and see how long a short conversation takes."""
        for _ in range(2):
            with suppress(ArmdError, QueueFull, ShuttingDown):
                self._render([{"role": "user", "content": "Hello"}])

    def close(self) -> None:
        """No more: what is being rendered ends at once."""
        self.closed = True
        self.chat.renderer.process.kill()

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        began = time.perf_counter()
        try:
            if not self.closed:
                return self.chat.text(messages)
        except ArmdError:
            if not self.closed:
                raise
        except OSError:  # no process can be started now, as for want of memory
            raise QueueFull(math.ceil(SECONDS)) from None
        finally:
            self.seconds = max(time.perf_counter() - began, 1e-6)
        raise ShuttingDown
