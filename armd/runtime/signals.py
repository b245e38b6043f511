"""Signals that end a command: it tidies up first, as after Ctrl-C."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PARENT = "ARMD_PARENT"
"""The variable in which a command that starts another for itself says its process id."""
_PR_SET_PDEATHSIG = 1
_got = 0
"""The signal that came, or 0."""


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) clean up like Ctrl-C does. What is ignored, such as
    SIGHUP under nohup, stays so."""
    global _got
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        global _got
        _got = number
        if number != signal.SIGINT:
            print("armd: terminated; nothing was kept", file=sys.stderr)
        raise_if_stopped()

    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ours.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in ours}
    _got = 0
    try:
        yield
    finally:
        _got = 0
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """On Linux, a command that another one started for itself gets SIGTERM when that one ends, also
    by kill -9; elsewhere it goes on alone."""
    parent = os.environ.pop(PARENT, None)  # processes of our own are not its children
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if str(os.getppid()) != parent:  # it ended before we asked
        raise SystemExit(128 + signal.SIGTERM)


def hide_lost_interrupts() -> None:
    """Ctrl-C where Python is just freeing an object is lost there (raise_if_stopped asks again),
    and Python would print a traceback of it."""
    before = sys.unraisablehook

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt | SystemExit):
            before(lost)

    sys.unraisablehook = hook


def raise_if_stopped() -> None:
    """To be called before what was made is put in place: what a signal raises is lost where Python
    was just freeing an object, and work goes on."""
    if _got == signal.SIGINT:
        raise KeyboardInterrupt
    if _got:
        raise SystemExit(128 + _got)
