"""One line a second of each kind in the log: a client could write thousands."""

import logging
import time
from collections import Counter


class OncePerSecond(logging.Filter):
    """Leaves out what a message of the same form has just said, and says how often. What has a
    traceback always passes."""

    def __init__(self, seconds: float = 1.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.last: dict[str, float] = {}
        self.left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            return True
        form, now = str(record.msg), time.monotonic()
        if now - self.last.get(form, -self.seconds) < self.seconds:
            self.left_out[form] += 1
            return False
        self.last[form] = now
        if count := self.left_out.pop(form, 0):
            record.msg = f"{form} ({count} more such lines before)"
        return True


once_per_second = OncePerSecond()
