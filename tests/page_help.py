"""A real browser on a real server, for the laws of the page: import the fixtures by name."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from hostile import tokenizer

import armd

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install it")
pytest.importorskip("fastapi", reason="no server: pip install 'armd[serve]'")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no chromium, chromium-browser or google-chrome here", allow_module_level=True)
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
QUIET = "--disable-background-networking --disable-component-update"
LENGTH = 256


@pytest.fixture(name="model", scope="module")
def a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of random weights, saved with that tokenizer."""
    return saved_model(tmp_path_factory.mktemp("page"))


def saved_model(folder: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_layers": 3, "n_heads": 2, "max_length": LENGTH, **changes}
    armd.ArmdLM(armd.ArmdConfig(vocab_size=513, **sizes)).save_pretrained(folder / "model")
    tokenizer().save(folder / "aside")
    for file in (folder / "aside").iterdir():
        file.rename(folder / "model" / file.name)
    config = folder / "model" / "tokenizer_config.json"
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    return folder / "model"


@pytest.fixture(name="address", scope="module")
def an_address(model: Path) -> Iterator[str]:
    """Where a server of that model answers."""
    command = [sys.executable, "-m", "armd.cli", "serve", str(model), "--port", "0"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as server:
        said = ""
        assert server.stdout is not None
        for line in server.stdout:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            raise AssertionError(f"the server did not start:\n{said}")
        yield found.group()
        server.terminate()


@pytest.fixture(name="browser", scope="module")
def a_browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=CHROMIUM, args=f"{FLAGS} {QUIET}".split(), timeout=120_000
        )
        yield running
        running.close()


@pytest.fixture(name="page")
def a_page(browser: Any, address: str) -> Iterator[Any]:
    """The page, opened; at the end nothing may have gone wrong in it, nor left the server."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)  # two busy cores are slow at times
    tab, errors, asked = context.new_page(), [], set()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    tab.goto(address)
    tab.locator("#drawing svg").first.wait_for()
    yield tab
    context.close()
    assert errors == []
    assert asked == {urlsplit(address).netloc}


def generate(page: Any) -> None:
    page.click("#generate")
    page.locator("#facts", has_text="tokens/s").wait_for()


def classes(page: Any, kind: str) -> int:
    return page.locator(f"#canvas .token.{kind}").count()
