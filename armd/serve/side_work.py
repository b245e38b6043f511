"""Work that grows with a request: in threads, while the event loop serves others."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Answer = TypeVar("Answer")
INLINE = 4096
"""Places of a plan, or entries of an answer, that are worked on at once, on the event loop; and
characters of a text that is short."""
_short_work, _long_work = (ThreadPoolExecutor(2, f"{kind}-work") for kind in ("short", "long"))
"""Few: each thread that runs Python keeps the event loop waiting for some milliseconds."""


async def beside(threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


async def aside(size: int, work: Callable[[], Answer]) -> Answer:
    """Work on a request or an answer of this size: in a thread where it takes long."""
    return await beside(_long_work, work) if size > INLINE else work()


async def encoding(size: int, work: Callable[[], Answer], places: int = 0) -> Answer:
    """Work that encodes so many characters, and plans so many places. A tokenizer is somebody
    else's: its patterns may take minutes for a short text, so that none of it is done on the event
    loop; and short texts do not wait for long ones."""
    if 0 < size <= INLINE and places <= 4 * INLINE:
        return await beside(_short_work, work)
    return await aside(max(size, places), work)
