"""What README and docs say exists: every command parses, every file and link is there."""

import functools
import importlib
import inspect
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tyro

from armd.cli import VERBS, find_verb

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Commands are parsed, not run: they train for minutes to months, need a GPU, a corpus or a network,
# or wait for clients. The tests of each verb run it at a small size.
WRITTEN = {"docs/paper.md"}
"""Files that a command writes."""
PLACEHOLDERS = {"NAME": "mdlm", "PRESET": "mini", "K": "2", "N": "2", "SOURCE": "book.txt"}


def commands(page: Path) -> tuple[list[str], list[str]]:
    """Lines of code blocks that call armd; and words in backticks that do, often in part."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines = "\n".join([*blocks, *re.findall(r"^    .*$", rest, re.M)]).replace("\\\n", " ")
    found = [re.sub(r"\s+#.*|\s+&&.*", "", line).strip() for line in lines.splitlines()]
    found = [re.sub(r"^(\$ )?(\.venv/bin/|python -m )?", "", line) for line in found]
    inline = [" ".join(code.split()) for code in re.findall(r"`(armd [^`]*)`", rest)]
    figures = re.compile(r"\s{4}[\d.]+\s")  # a row of a table that names the command
    return [ln for ln in found if ln.startswith("armd ") and not figures.search(ln)], inline


def words_of(line: str) -> list[str]:
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)[1:]]
    ends = [words.index(mark) for mark in ("|", ">", "...") if mark in words]
    return words[: min(ends, default=len(words))]


def is_overview(words: list[str]) -> bool:
    """armd --help, armd eval --help and the like."""
    group = any(verb.startswith(f"{words[0]} ") for verb in VERBS) and words[1:] in ([], ["--help"])
    return group or words[0] in ("--help", "--version", "VERB")


def parsed(line: str) -> None:
    """Raise unless the verb exists and takes these words. Nothing is done."""
    words = words_of(line)
    if is_overview(words):
        return
    verb, rest = find_verb(words)
    if "--help" in rest or "..." in line:
        return
    module = importlib.import_module(f"armd.{VERBS[verb][0]}")
    target = getattr(module, VERBS[verb][1])
    if list(inspect.signature(target).parameters) == ["words"]:
        module.parse(rest)
        return

    @functools.wraps(target)
    def nothing(*args: object, **kwargs: object) -> None: ...

    tyro.cli(nothing, args=rest, prog=f"armd {verb}", config=(tyro.conf.OmitArgPrefixes,))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path, capsys: pytest.CaptureFixture) -> None:
    wrong = []
    lines, inline = commands(page)
    for line in dict.fromkeys(lines):
        try:
            parsed(line)
        except (SystemExit, Exception) as error:
            said = capsys.readouterr()
            wrong.append(f"{line}\n  {error} {(said.err or said.out)[-300:]}")
    for line in inline:
        words = words_of(line)
        if words and not is_overview(words):
            find_verb(words)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_link_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    local = [link.strip() for link in links if "://" not in link]
    gone = [link for link in local if not (page.parent / link).exists()]
    named = re.findall(r"`((?:armd|tests|docs|examples|results)/[\w/.-]+\.\w+)`", text)
    gone += [name for name in named if name not in WRITTEN and not (ROOT / name).exists()]
    assert not gone


def test_the_page_of_the_package_links_to_nothing_beside_it() -> None:
    """It is shown where this repository is not."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / settings["project"]["readme"]).read_text("utf-8"))
    assert links and all(link.startswith("https://") for link in links)


def test_errors_name_commands_that_exist() -> None:
    """Of every message in the code that says `armd VERB`."""
    first = {verb.split()[0] for verb in VERBS}
    for path in sorted((ROOT / "armd").rglob("*.py")):
        for word in re.findall(
            r"(?:run|use|make one:|with|try)[ :]+'?armd ([a-z]+)", path.read_text()
        ):
            assert word in first, (path.name, word)


RESULTS = sorted((ROOT / "results").glob("*.json"))


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda path: path.name)
def test_no_path_of_one_machine_is_written_down(page: Path) -> None:
    found = re.findall(r"(?<![\w.~$}])/(?:tmp|home|root|work|Users)/\S+", page.read_text("utf-8"))
    assert not found
