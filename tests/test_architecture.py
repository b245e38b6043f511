"""The rooms of the package: who may import whom, how large a file may be, what the wheel holds."""

import __future__

import ast
import builtins
import dis
import shutil
import subprocess
import symtable
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import armd

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(armd.__file__).parent
# bottom to top: a room imports itself and the rooms before it; "root" are the files beside them
ROOMS = ["model", "runtime", "native", "generation", "data", "baselines", "root", "convert"]
ROOMS += ["train", "eval", "serve", "commands", "plots", "bench", "reproduce"]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def room_of(module: list[str]) -> str:
    """The room of armd.x.y, given as ["x", "y"]."""
    if module[:1] in (["errors"], ["order"]):
        return "model"  # these two only re-export it
    return module[0] if module and module[0] in ROOMS else "root"


def imports_of(path: Path) -> list[tuple[int, list[str]]]:
    """Line and imported module, below armd, of every import in a file that runs."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    here = list(path.relative_to(PACKAGE).parent.parts)
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + 1]
            named = (node.module or "").split(".") if node.module else []
            targets = [[*base, *named]] if named else [[*base, alias.name] for alias in node.names]
            found += [(node.lineno, target) for target in targets]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("armd"):
            found.append((node.lineno, (node.module or "").split(".")[1:]))
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    wrong = []
    for path in FILES:
        own = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if room_of(own) != room or path == PACKAGE / "__init__.py":
            continue
        for line, target in imports_of(path):
            if ROOMS.index(room_of(target)) > ROOMS.index(room):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {'.'.join(target)}")
    assert not wrong, "\n".join(wrong)


def test_the_files_that_travel_with_weights_are_siblings() -> None:
    """transformers copies what `from .x import` names in the same folder, and nothing else."""
    for path in (PACKAGE / "model").glob("*.py"):
        outside = [target for _, target in imports_of(path) if target[:1] != ["model"]]
        assert not outside, (path.name, outside)


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_file_answers_many_questions() -> None:
    long = {p.name: n for p in [*FILES, *TESTS] if (n := lines_of(p)) > 300}
    assert not long


def test_decoding_stays_small() -> None:
    """One idea, draw the next block with a cache, in a room that is read in one sitting."""
    assert sum(map(lines_of, (PACKAGE / "generation").glob("*.py"))) <= 1100


def test_no_function_is_long() -> None:
    """Docstrings and declared options apart, a function has at most 50 lines."""
    long = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = node.body[min(len(node.body) - 1, ast.get_docstring(node) is not None)]
            lines = (node.end_lineno or 0) - first.lineno + 1
            if lines > 50:
                long.append(f"{path.name}:{node.lineno} {node.name} {lines}")
    assert not long


def test_the_wheel_holds_kernels_page_and_rooms(tmp_path: Path) -> None:
    """Without the C sources decoding would silently take the slow way."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "docs").mkdir()
    for name in ("pyproject.toml", "docs/package.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(PACKAGE, source / "armd", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import setuptools.build_meta as b; print(b.build_wheel('out'))"
    (source / "out").mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = (source / "out").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("armd/")}
    wanted = {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == wanted


def global_names(code: CodeType) -> Iterator[tuple[str, int]]:
    """Names that a module's functions look up in it, and their lines."""
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = step.starts_line or line
        if step.opname == "LOAD_GLOBAL":
            yield step.argval, line
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from global_names(part)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_name_is_defined(path: Path) -> None:
    """Linters take names in shapes, such as "b n", for undefined ones, and are not asked."""
    source = path.read_text("utf-8")
    scope = symtable.symtable(source, str(path), "exec")
    inside = {s.get_name() for s in scope.get_symbols() if s.is_assigned() or s.is_imported()}
    inside |= {child.get_name() for child in scope.get_children()} | set(dir(builtins))
    inside |= {"__file__", "__name__", "__path__", "__class__"}
    code = compile(source, str(path), "exec", flags=__future__.annotations.compiler_flag)
    wrong = [f"{name} in line {line}" for name, line in global_names(code) if name not in inside]
    assert not wrong
