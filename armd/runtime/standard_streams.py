"""What a shell may take away from a command: its input and output, and room for a line."""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NARROWEST = 20
"""Columns, below which the help is laid out without end."""
BROKEN = "\ufffd"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Letters that a terminal obeys."""


def printable(text: str) -> str:
    """Text for a terminal, of a model or a folder that anybody may have made."""
    return CONTROL.sub(BROKEN, text)


def mend_streams() -> None:
    """Open what is closed, to nowhere: the next file that is opened would take its number, and
    what is printed would go into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="replace")  # what was computed is shown, as far as it can be


def to_nowhere(number: int) -> None:
    """What is printed to this stream from now on, and what it still holds, is lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


class OutlivingOutput:
    """Standard output whose reader may leave, as `| head` does, or whose disk may be full: what is
    printed after that is lost, and the command goes on. A full disk is an error in the end."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.error = stream, None

    def write(self, text: str) -> int:
        with self.ready():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self.ready():
            self.stream.flush()

    @contextmanager
    def ready(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            to_nowhere(1)
            self.error = None if isinstance(error, BrokenPipeError) else error

    def close_out(self) -> None:
        """Flush, and raise what went wrong on the way, if it was no reader that left."""
        self.flush()
        if self.error is not None:
            raise self.error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def outlive_reader() -> None:
    """For commands whose figures go to a file, too."""
    sys.stdout = OutlivingOutput(sys.stdout)  # type: ignore[assignment]


def widen() -> None:
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
