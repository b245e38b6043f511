"""Commands in processes that start quickly: they are forked where torch is imported already. From
`main` on they are as a shell starts them; tests of the start itself start Python anew."""

import os
import signal
import sys
from multiprocessing import reduction
from subprocess import PIPE
from typing import Any

from patience import PATIENCE
from training_help import CONTEXT

HEEDED = (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)


class Handed:
    """A number of a file, that a child gets its own number of."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return taken, (reduction.DupFd(self.number),)


def taken(handed: Any) -> int:
    return handed.detach()


def answer(words: list[str], environment: dict[str, str], out: Any, errors: Any) -> None:
    """In the child, which has a session of its own."""
    from armd.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in HEEDED:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop("ARMD_PARENT", None)  # its parent is the process that forks
    for number, name, given in ((1, "stdout", out), (2, "stderr", errors)):
        if given is not None:
            os.dup2(given, number)
            os.close(given)
        setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = ["armd", *words]
    main()


class Forked:
    """`armd` with these words; of subprocess.Popen, what is used here."""

    def __init__(
        self,
        words: list[str],
        *,
        stdout: Any = None,
        stderr: Any = None,
        env: dict[str, str] | None = None,
        **_: Any,
    ) -> None:
        """Of a whole command, the words behind `armd.cli`."""
        if "armd.cli" in words:
            words = words[words.index("armd.cli") + 1 :]
        self.stdout, out = opened(stdout)
        self.stderr, errors = opened(stderr)
        handed = [None if number is None else Handed(number) for number in (out, errors)]
        arguments = (words, dict(os.environ if env is None else env), *handed)
        self.process = CONTEXT.Process(target=answer, args=arguments, daemon=True)
        self.process.start()
        self.pid = self.process.pid
        for number, ours in ((out, self.stdout), (errors, self.stderr)):
            if ours is not None:
                os.close(number)

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float = PATIENCE) -> int | None:
        self.process.join(timeout)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        for ours in (self.stdout, self.stderr):
            if ours is not None:
                ours.close()
        self.wait()


def opened(where: Any) -> tuple[Any, int | None]:
    """Our end of a pipe, and the number that the child writes to."""
    if where is None:
        return None, None
    if where == PIPE:
        ours, theirs = os.pipe()
        return open(ours, encoding="utf-8"), theirs
    return None, where if isinstance(where, int) else where.fileno()
