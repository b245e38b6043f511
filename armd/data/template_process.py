"""Renders chat templates, in a process of its own: a template is a program, and may come from
anybody. It has a bound in time and in memory, and beyond that the system ends the process.

Run as a script, with the seconds of a core that one conversation may take. Each line of input is a
table of what transformers' render_jinja_template takes, each line of output has a "text" or an
"error"."""

import json
import os
import resource
import signal
import sys
from typing import Any

ROOM = 1 << 29
"""Bytes of memory beyond what the start takes."""
LONGER = 4, 1 << 20
"""A text may be so many times longer than what it is made of, and so many letters more."""


def bound_memory() -> None:
    """Where the system can: elsewhere time alone is bounded."""
    try:
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, now + ROOM))
    except (OSError, ValueError):
        pass


def rendered(render: Any, line: str) -> dict[str, str]:
    try:
        text = render(**json.loads(line))[0][0]
    except MemoryError:
        return {"error": "it takes too much memory"}
    except Exception as error:  # templates raise what they like
        return {"error": (str(error).splitlines() or [type(error).__name__])[0][:1000]}
    times, more = LONGER
    if len(text) > times * len(line) + more:
        return {"error": "its text is too long"}
    return {"text": text}


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what others print is no answer
    from transformers.utils.chat_template_utils import render_jinja_template

    seconds = float(sys.argv[1])
    bound_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        # of processor time, so that a busy machine changes nothing; the system ends us
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = json.dumps(rendered(render_jinja_template, line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
