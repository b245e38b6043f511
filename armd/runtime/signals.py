"""Signals that end a command: it tidies up first, as after Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) clean up like Ctrl-C does. What is ignored, such as
    SIGHUP under nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        print("armd: terminated; nothing was kept", file=sys.stderr)
        raise SystemExit(128 + number)

    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
