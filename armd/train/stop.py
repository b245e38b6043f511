"""The signals that end a run: it is asked to stop, and does so when its step is done."""

import contextlib
import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Remembers SIGTERM, SIGHUP and Ctrl-C until the step is done. A second Ctrl-C stops at once.
    A signal that was ignored, as SIGHUP is under nohup, stays ignored."""

    def __init__(self) -> None:
        self.signal = 0

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal = number

    def __enter__(self) -> "Stop":
        self.before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # not the main thread: the caller has the signals
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
