"""What the command line says of an error, in one line, and which errors are defects of ours."""

import errno
import traceback
from pathlib import Path

from .errors import ArmdError, first_line, os_error_in

REFUSALS = (ArmdError, OSError, MemoryError, OverflowError, UnicodeError, RuntimeError, ImportError)
NO_MEMORY = ("allocate memory", "out of memory", "bad_alloc")
"""Words of torch, C++ and the loader of libraries."""
NO_LIBRARY = (
    "out of memory; free some, or where the folder of TMPDIR or XDG_CACHE_HOME is mounted noexec, "
    "name another one"
)
OURS = Path(__file__).parent
COMPILERS = ("torch._inductor", "torch._dynamo")


def refusal_of(error: Exception) -> Exception:
    """What the system refused, of errors that have no kind of their own; else the error."""
    if isinstance(error, MemoryError | OSError | ArmdError):
        return error
    if isinstance(error, RuntimeError | ImportError) and (refused := refused_in_words(error)):
        return refused
    if refused := os_error_in(error):
        return refused
    if library := failed_import(error):
        said = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        return ArmdError(
            f"{library} cannot be imported ({said[:200]}); is one of its environment variables "
            "wrong, or its installation damaged?"
        )
    return error


def refused_in_words(error: Exception) -> Exception | None:
    """The same of one that only its words tell."""
    if type(error).__module__.startswith(COMPILERS):
        return ArmdError(
            f"torch.compile failed ({first_line(error)}); it needs a C++ compiler and room in "
            "TMPDIR: install one or make room, or leave out --compile"
        )
    if "failed to map segment" in str(error):
        return ArmdError(NO_LIBRARY)
    if any(words in str(error) for words in NO_MEMORY):
        return MemoryError()
    if "Symlink loop" in str(error):  # pathlib's, before Python 3.13
        return ArmdError(f"{error}; put the file itself there")
    if isinstance(error, RecursionError):
        return ArmdError("a file holds tables inside tables without end; is it damaged?")
    if "start new thread" in str(error):
        return ArmdError("the system starts no more threads; end some, or raise ulimit -u")
    return None


def failed_import(error: BaseException | None) -> str | None:
    """The library whose import the error ended, if it did: most read settings of their own."""
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        files = [f.f_code.co_filename for f in frames if f.f_code.co_name == "<module>"]
        parts = Path(files[-1]).parts if files else ()
        if "site-packages" in parts and OURS not in Path(files[-1]).parents:
            return parts[parts.index("site-packages") + 1].removesuffix(".py")
        error = error.__cause__
    return None


def one_line(error: Exception) -> str:
    """What went wrong, without a traceback: the user's mistake, or the system's refusal."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "out of memory; use a smaller model, batch or length"
    if isinstance(error, UnicodeEncodeError):
        shown = error.object.encode("utf-8", "replace").decode()[:80]
        return f"'{shown}' is no UTF-8 text; rename what has this name, or write it otherwise"
    if isinstance(error, OverflowError):
        return f"{error}; give a smaller number"
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}; choose another file or folder, or make room there"
    return " ".join(str(error).split()) or type(error).__name__
