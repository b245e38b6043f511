"""The compiled library in the user's cache: compiled once for this machine, loaded only if it is
ours and whole.

A file here becomes code of the process. So its folder and it must belong to this user, nobody else
may write to them, no link is followed, and its name carries the checksum of its content."""

import atexit
import contextlib
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")
COMPILE_SECONDS, COMPILING = 900, "compiling-"


def flags() -> tuple[str, ...]:
    """For this system's compiler. Apple's clang has no OpenMP of its own, and two in one process
    do not bear each other: it takes the one that torch brings, or else there is one thread."""
    if platform.system() != "Darwin":
        return FLAGS
    tuned = "-mcpu=native" if platform.machine() == "arm64" else "-march=native"
    spec = importlib.util.find_spec("torch")
    folders = (spec.submodule_search_locations if spec else None) or []
    found = next((p for f in folders if (p := Path(f) / "lib" / "libomp.dylib").is_file()), None)
    openmp: tuple[str, ...] = ()
    if found is not None:
        openmp = ("-Xpreprocessor", "-fopenmp", str(found), f"-Wl,-rpath,{found.parent}")
    return ("-O3", tuned, "-ffp-contract=fast", *openmp, "-shared", "-fPIC")


class CannotCompile(Exception):
    """Why there is no library."""


def library_file(sources: Sequence[Path], *, anew: bool = False) -> Path:
    """The library made of these files; with `anew`, not one that was compiled before. Raises
    CannotCompile, with the reason."""
    if platform.system() not in ("Linux", "Darwin"):
        raise CannotCompile(f"they are for Linux and macOS, this is {platform.system()}")
    if missing := [source.name for source in sources if not source.is_file()]:
        raise CannotCompile(f"the package lacks {', '.join(missing)}")
    compiler = _compiler()
    key = _key(sources, compiler)
    folder = cache_folder()
    if not anew:
        for found in sorted(folder.glob(f"armd-{key}-*.so")):
            if is_whole(found):
                return found
    for left in folder.glob(f"armd-{key}-*.so"):  # damaged, foreign, or of no use
        with contextlib.suppress(OSError):
            left.unlink()
    return _compile(sources, compiler, folder, key)


def is_whole(path: Path) -> bool:
    """A file of ours that nobody else may write to, with the content that its name says."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or not _ours(facts):
            return False
        return hashlib.file_digest(file, "sha256").hexdigest() == path.stem.rpartition("-")[2]


def cache_folder() -> Path:
    """Where the library is kept: the user's cache, or, where that is not theirs alone or cannot be
    written, a folder in the system's temporary one that is."""
    for folder in _candidates():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
                if not _ours(facts):
                    folder.chmod(0o700)
                if _parents_safe(folder) and os.access(folder, os.W_OK | os.X_OK):
                    return folder
        except OSError:
            continue
    alone = tempfile.mkdtemp(prefix="armd-")  # of this process alone
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return Path(alone)


def own_compiled_graphs() -> None:
    """torch.compile unpickles graphs that it finds in the system's temporary folder, whoever made
    them. Ours are kept in a folder of this user alone, unless another one is named."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        with contextlib.suppress(OSError):  # no folder can be written to, nor are graphs kept
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")


def _candidates() -> Iterator[Path]:
    given = os.environ.get("XDG_CACHE_HOME")
    if given and Path(given).is_absolute():
        yield Path(given) / "armd"
    with contextlib.suppress(RuntimeError, KeyError):  # no HOME, and no entry in passwd
        home = Path.home()
        if home.is_absolute() and home != Path("/"):
            yield home / ".cache" / "armd"
    yield Path(tempfile.gettempdir()) / f"armd-{os.geteuid()}"


def _ours(facts: os.stat_result) -> bool:
    return facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _parents_safe(folder: Path) -> bool:
    """Nobody else can put another folder in this one's place."""
    for parent in folder.resolve().parents:
        facts = parent.stat()
        open_to_all = facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX
        if facts.st_uid not in (0, os.geteuid()) or open_to_all:
            return False
    return True


def _compiler() -> list[str]:
    """The C compiler's command."""
    try:
        given = shlex.split(os.environ.get("CC") or "")
    except ValueError as error:
        raise CannotCompile(f"CC is no command ({error})") from None
    found = shutil.which(given[0]) if given else shutil.which("cc") or shutil.which("gcc")
    if not found:
        raise CannotCompile(f"no C compiler{f' {given[0]!r}' if given else ''}; install gcc")
    return [found, *given[1:]]


def _key(sources: Sequence[Path], compiler: Sequence[str]) -> str:
    """Names all that the library follows from: the sources, the compiler, the processor."""
    try:
        machine = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        machine = []
    features = [line for line in machine if line.startswith(("flags", "Features"))]
    parts = [*(s.read_text() for s in sources), *compiler, *flags(), platform.machine(), *features]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _compile(sources: Sequence[Path], compiler: list[str], folder: Path, key: str) -> Path:
    """Made under another name, flushed to the disk, then renamed: whole or absent."""
    files = [str(source) for source in sources if source.suffix == ".c"]
    for left in folder.glob(f"{COMPILING}*"):  # by one that was killed
        with contextlib.suppress(OSError):
            if left.lstat().st_mtime < time.time() - 2 * COMPILE_SECONDS:
                shutil.rmtree(left)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=COMPILING) as place:
            made = Path(place) / "library.so"
            command = [*compiler, *flags(), *files, "-lm", "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
            made.chmod(0o700)
            with made.open("rb+") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            final = folder / f"armd-{key}-{digest}.so"
            made.replace(final)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        raise CannotCompile(
            f"{compiler[0]} failed: {(said or ['no reason given'])[0][:200]}"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotCompile(f"{compiler[0]} failed: {error}") from None
    return final
