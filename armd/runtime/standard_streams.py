"""What a shell may take away from a command: its input and output, and room for a line."""

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NARROWEST = 20
"""Columns, below which the help is laid out without end."""


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
    """Standard output whose reader may leave, as `| head` does: what is printed after that is lost,
    and the command goes on."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

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
        except BrokenPipeError:
            to_nowhere(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def outlive_reader() -> None:
    """For commands whose figures go to a file, too."""
    sys.stdout = OutlivingOutput(sys.stdout)  # type: ignore[assignment]


def widen() -> None:
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
