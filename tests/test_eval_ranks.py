"""Several processes score one text with the same weights, or say that they cannot."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from eval_models import TEXTS, saved, tiny_armd

from armd.errors import ArmdError
from armd.eval import load_model, ppl
from armd.runtime.processes import ProcessGroup

HERE = threading.local()


@dataclass(frozen=True)
class Thread(ProcessGroup):
    """Two processes, here two threads, that exchange what they say through a list."""

    world: int = 2
    said: list[Any] = field(default_factory=lambda: [None, None])
    meet: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=30))

    def both(self, value: Any) -> list[Any]:
        self.said[self.rank] = value
        self.meet.wait()
        found = list(self.said)
        self.meet.wait()
        return found

    def total(self, mine: Sequence[float]) -> list[float]:
        return [sum(pair) for pair in zip(*self.both(mine), strict=True)]

    def from_first(self, value: Any) -> Any:
        return self.both(value)[0]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Any:
    """Score with two processes, each of which finds models[rank] in the run's folder, and
    results[rank] in the file; what each of them returns, or the line that it says."""
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 3))
    load = load_model.load
    monkeypatch.setattr(
        load_model, "load", lambda *_, **__: replace(load(HERE.model, device="cpu"), name="run")
    )
    monkeypatch.setattr(ppl, "process_group", lambda: nullcontext(HERE.ranks))

    def ask(models: list[str], results: list[Path | None]) -> list[Any]:
        first = Thread()

        def one(rank: int) -> Any:
            HERE.model, HERE.ranks = models[rank], replace(first, rank=rank)
            data = str(tmp_path / "text.txt")
            try:
                return ppl.eval_ppl("run", data=data, window=16, json=results[rank])
            except ArmdError as error:
                return str(error)

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(one, range(2)))

    return ask


def test_weights_that_were_replaced_between_two_loads_make_no_figure(
    ask: Any, tmp_path: Path
) -> None:
    old = saved(tiny_armd(), tmp_path / "old")
    new, file = saved(tiny_armd(n_layers=2), tmp_path / "new"), tmp_path / "ppl.json"
    one, two = ask([old, new], [file, None])
    assert "was replaced while it was loaded" in one and one == two
    assert not file.exists()


def test_what_the_first_process_finds_done_no_other_begins(ask: Any, tmp_path: Path) -> None:
    model, file = saved(tiny_armd(), tmp_path / "model"), tmp_path / "ppl.json"
    made, _ = ask([model, model], [file, None])
    again = ask([model, model], [file, None])
    timed = ("seconds", "date", "tokens_per_second")
    assert [[{k: v for k, v in one.items() if k not in timed} for one in got] for got in again] == [
        [{k: v for k, v in one.items() if k not in timed} for one in made]
    ] * 2
